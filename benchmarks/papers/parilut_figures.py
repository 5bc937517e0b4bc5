"""The figures of the ParILUT papers from a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.harness.building_blocks import BLOCKS
from benchmarks.harness.figure import Drawing
from benchmarks.harness.record import Run
from benchmarks.harness.table import ratio
from benchmarks.papers.parilut_measure import PAPER_SIZE
from benchmarks.papers.parilut_tables import TABLE_4, marked, own


def _grid(ax, **what) -> None:
    ax.set(**what)
    ax.grid(True, alpha=0.3)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize="small")


def _known(values: Sequence) -> list[float]:
    return [np.nan if v is None else v for v in values]


def figure_1(run: Run, figure: Any) -> bool:
    records = run.find(work="steps")
    left, right = figure.subplots(1, 2)
    for record in records:
        iterations, norms = record.detail["iterations"], record.detail["norms"]
        if len(norms) == 1:
            style = {"linestyle": "--" if record.variant == "IC0" else "-.", "color": "0.3", "label": record.variant}
            if iterations[0]:
                left.axhline(iterations[0], **style)
            right.axhline(norms[0], **style)
        else:
            for ax, values in ((left, iterations), (right, norms)):
                ax.plot(_known(values), marker="o", markersize=3, label=f"ParICT, δ = {record.variant}")
    _grid(left, xlabel="steps", ylabel="PCG iterations")
    _grid(right, xlabel="steps", ylabel="$||A - L L^T||_F$")
    return bool(records)


def figure_2(run: Run, figure: Any) -> bool:
    records = [r for r in run.find(work="steps") if len(r.detail["norms"]) > 1]
    ax = figure.subplots()
    for k, record in enumerate(records):
        ax.plot(record.detail["discrepancy"], f"C{k}o-", markersize=3, label=f"ParICT, δ = {record.variant}")
        ax.plot(record.detail["most"], f"C{k}:", linewidth=1)
    for record in run.find(work="steps", variant="IC0"):
        ax.axhline(record.detail["discrepancy"][0], linestyle="--", color="0.3", label="IC(0)")
    _grid(ax, xlabel="steps", ylabel="places in one pattern only")
    return bool(records)


def figure_3(run: Run, figure: Any) -> bool:
    found = run.find(work="step 3")
    left, right = figure.subplots(1, 2)
    for theirs, style in ((False, "o-"), (True, "x")):
        records = sorted((r for r in found if bool(own(r.matrix)) == theirs), key=lambda r: r.detail["n"])
        if not records:
            continue
        n, mark = [r.detail["n"] for r in records], " (the paper's)" if theirs else ""
        left.plot(n, [r.detail["candidates"] for r in records], f"C0{style}", label=f"candidates{mark}")
        series = {
            "step 3": [r.numeric_ms for r in records],
            "candidates": [r.detail["search_ms"] for r in records],
            "first sweep": [r.detail["sweep_ms"] for r in records],
        }
        for k, (name, values) in enumerate(series.items()):
            right.plot(n, [v / 1e3 for v in values], f"C{k}{style}", label=name + mark)
    _grid(left, xscale="log", yscale="log", xlabel="rows", ylabel="candidates at step 3")
    _grid(right, xscale="log", yscale="log", xlabel="rows", ylabel="s")
    return bool(found)


def figure_8(run: Run, figure: Any) -> bool:
    records = run.find(work="selection")
    left, right = figure.subplots(1, 2, sharey=True)
    for variant in dict.fromkeys(r.variant for r in records):
        ours = [r for r in records if r.variant == variant]
        sizes = sorted((r for r in ours if r.detail["kind"] == "uniform"), key=lambda r: r.detail["exponent"])
        if sizes:
            throughput = [2 ** r.detail["exponent"] / r.numeric_ms / 1e6 for r in sizes]
            left.plot([2 ** r.detail["exponent"] for r in sizes], throughput, "o-", markersize=3, label=variant)
        repeated = [r for r in ours if r.detail["kind"].endswith(" values")]
        if repeated:
            different = [int(r.detail["kind"].split()[0]) for r in repeated]
            throughput = [2 ** r.detail["exponent"] / r.numeric_ms / 1e6 for r in repeated]
            right.plot(different, throughput, "o-", markersize=3, label=variant)
    _grid(left, xscale="log", yscale="log", xlabel="values", ylabel="10⁹ values a second")
    _grid(right, xscale="log", xlabel=f"different values among 2^{PAPER_SIZE}")
    return bool(records)


def figure_9(run: Run, figure: Any) -> bool:
    records = run.find(work="selection kernels")
    names = list(dict.fromkeys(name for r in records for name, _ in r.detail["kernels"]))
    ax = figure.subplots()
    bottoms = np.zeros(len(records))
    for name in names:
        heights = np.array([sum(ms for k, ms in r.detail["kernels"] if k == name) for r in records])
        ax.bar([r.variant for r in records], heights, bottom=bottoms, label=name)
        bottoms += heights
    _grid(ax, ylabel=f"ms of a search among 2^{PAPER_SIZE}")
    return bool(records)


def figure_10(run: Run, figure: Any) -> bool:
    records = run.find(work="exactness")
    names = list(dict.fromkeys((r.matrix, r.device) for r in records))
    axes = figure.subplots(max(len(names), 1), 1, sharex=True, squeeze=False)[:, 0]
    for ax, (name, device) in zip(axes, names, strict=False):
        for record in run.find(work="exactness", matrix=name, device=device):
            values = _known(record.detail["iterations"])
            if record.variant == "ILU0":
                ax.axhline(values[0], linestyle="--", color="0.3", label="ILU(0)")
            else:
                ax.plot(values, "o-" if record.variant == "exact" else "x--", label=f"{record.variant} thresholds")
        _grid(ax, ylabel="GMRES iterations", title=f"{marked(name)}, {device}")
    axes[-1].set_xlabel("steps")
    return bool(records)


def _stacked(ax, columns: list[tuple[str, dict[str, float]]]) -> None:
    """Bars of height one, parted by building block."""
    bottoms = np.zeros(len(columns))
    for label in BLOCKS:
        heights = np.array([blocks.get(label, 0.0) / sum(blocks.values()) for _, blocks in columns])
        ax.bar(range(len(columns)), heights, bottom=bottoms, label=label, width=0.8)
        bottoms += heights
    ax.set_xticks(range(len(columns)), [name for name, _ in columns], rotation=90, fontsize=6)
    ax.legend(fontsize="x-small", ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    ax.set_ylabel("share of the time")


def figure_11(run: Run, figure: Any) -> bool:
    device = "gpu" if run.find(work="factor", device="gpu") else "cpu"
    columns = [
        (f"{name} {short}", record.detail["blocks"])
        for name in run.matrices
        for variant, short in (("ParILUT exact", "exact"), ("ParILUT", "approx."))
        if (record := run.one(matrix=name, work="factor", device=device, variant=variant))
    ]
    _stacked(figure.subplots(), columns)
    return bool(columns)


def figure_12(run: Run, figure: Any) -> bool:
    columns = [
        (f"{name} {device}", record.detail["blocks"])
        for name in run.matrices
        for device in ("cpu", "gpu")
        if (record := run.one(matrix=name, work="factor", device=device, variant="ParILUT"))
    ]
    _stacked(figure.subplots(), columns)
    return bool(columns)


def figure_13(run: Run, figure: Any) -> bool:
    def speedup(name: str, device: str) -> float | None:
        peer = run.one(matrix=name, work="factor", who="superlu")
        ours = run.one(matrix=name, work="factor", device=device, variant="ParILUT")
        return ratio(peer and peer.numeric_ms, ours and ours.numeric_ms)

    devices = [d for d in ("cpu", "gpu") if run.find(work="factor", device=d, who="finelu")]
    names = [name for name in run.matrices if any(speedup(name, d) for d in devices)]
    ax = figure.subplots()
    for k, device in enumerate(devices):
        heights = [speedup(name, device) or np.nan for name in names]
        ax.bar(
            np.arange(len(names)) + 0.4 * (k - (len(devices) - 1) / 2), heights, width=0.4, label=f"ParILUT, {device}"
        )
    theirs = [(k, v[2] / v[1]) for k, name in enumerate(names) if (v := TABLE_4.get(own(name)))]
    if theirs:
        ax.plot(*zip(*theirs, strict=True), "k_", markersize=12, label="2018: 68 threads of a Xeon Phi, its SuperLU")
    ax.axhline(1.0, color="0.4", linewidth=0.8)
    ax.set_xticks(range(len(names)), [marked(name) for name in names], rotation=90, fontsize=6)
    _grid(ax, yscale="log", ylabel="SuperLU's time over ours")
    return bool(names)


FIGURES: dict[str, tuple[str, str, Drawing]] = {
    "2018-1": ("PCG iterations and residual norm over the steps, exact thresholds", "steps", figure_1),
    "2018-2": ("pattern discrepancy to the classical ICT; dotted: the least it could be", "steps", figure_2),
    "2018-3": ("candidates and least time of step 3 of ParICT over the size", "sizes", figure_3),
    "2019-8": ("throughput of the selections on the GPU", "selection", figure_8),
    "2019-9": ("the kernels of a search on the GPU", "selection", figure_9),
    "2019-10": ("GMRES iterations with exact and approximate thresholds", "exactness", figure_10),
    "2019-11": ("share of the building blocks, exact and approximate thresholds", "time", figure_11),
    "2019-12": ("share of the building blocks by device (2018: Figure 4, left)", "time", figure_12),
    "2019-13": ("ParILUT over SuperLU (SciPy's spilu with as many entries, one thread)", "time", figure_13),
}
