"""pandapower: load flow by Newton's method and by the fast decoupled one, PTDF, and state estimation."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandapower as pp
import pandapower.estimation
import pandapower.networks as networks
import pandapower.pypower.fdpf
import pandapower.pypower.makePTDF
from harness import Example

CASES = ("case118", "case1888rte", "case2848rte", "GBnetwork", "case6470rte", "case9241pegase")


def load_flow(net: Any, **options: Any) -> Any:
    pp.runpp(net, init="flat" if options else "dc", lightsim2grid=False, numba=False, **options)
    return net.res_bus.vm_pu.to_numpy(), net.res_bus.va_degree.to_numpy()


def ptdf(net: Any, memory_saved: bool) -> Any:
    parts = net._ppc["internal"]
    bus, branch = parts["bus"], parts["branch"]
    asked = None if memory_saved else np.arange(0, len(branch), max(1, len(branch) // 300))
    slack = int(parts["ref"][0])
    H = pandapower.pypower.makePTDF.makePTDF(
        100.0, bus, branch, slack, using_sparse_solver=True, branch_id=asked, reduced=not memory_saved
    )
    return H


def estimation(net: Any) -> Any:
    if not pandapower.estimation.estimate(net, init="flat")["success"]:
        raise ArithmeticError("the state estimation did not converge")
    return net.res_bus_est.vm_pu.to_numpy(), net.res_bus_est.va_degree.to_numpy()


def measurements(net: Any) -> Any:
    """The network with its load flow's voltages, injections and flows as exact measurements."""
    load_flow(net)
    for bus in net.bus.index[net.bus.in_service]:
        found = net.res_bus.loc[bus]
        pp.create_measurement(net, "v", "bus", float(found.vm_pu), 0.01, element=bus)
        pp.create_measurement(net, "p", "bus", float(found.p_mw), 1.0, element=bus)
        pp.create_measurement(net, "q", "bus", float(found.q_mvar), 1.0, element=bus)
    for line in net.line.index[net.line.in_service]:
        found = net.res_line.loc[line]
        pp.create_measurement(net, "p", "line", float(found.p_from_mw), 1.0, element=line, side="from")
        pp.create_measurement(net, "q", "line", float(found.q_from_mvar), 1.0, element=line, side="from")
    return net


def examples() -> list[Example]:
    nets = {name: getattr(networks, name)() for name in CASES}
    found = [
        Example(f"newtonpf {name}", partial(load_flow, net), modules=("pandapower",)) for name, net in nets.items()
    ]
    decoupled = networks.case118()
    found.append(Example("fdpf case118", partial(load_flow, decoupled, algorithm="fdbx"), modules=("pandapower",)))
    for name, memory_saved in (("case1888rte", False), ("case1888rte", True)):
        load_flow(nets[name])
        text = f"PTDF {name}, {'all branches' if memory_saved else '300 branches'}"
        found.append(Example(text, partial(ptdf, nets[name], memory_saved), modules=("pandapower",)))
    for name in ("case118", "case1354pegase"):
        net = measurements(getattr(networks, name)())
        found.append(Example(f"state estimation {name}", partial(estimation, net), modules=("pandapower",)))
    return found
