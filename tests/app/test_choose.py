"""choose: one rule for recipe and method, and all that solve by a recipe follow it, with gmres where cg fails."""

import json
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

import finelu as fl
from finelu import cli, gallery
from finelu.auto import choose as choose_module
from finelu.auto.choose import choose, compared, rungs, sooner_on_host
from finelu.auto.cost import Costs
from finelu.auto.ladder import Ladder
from finelu.auto.rates import SHIPPED, SHIPPED_ON_GPU
from finelu.compare import compare
from finelu.compare.choose import candidates
from finelu.gallery.building import convection
from finelu.interop.adjoint import Options, System
from finelu.matrix import traits as traits_module
from finelu.matrix.looks import alike, cancelling, skew
from finelu.matrix.traits import traits
from finelu.ordering import Fill
from finelu.preconditioners import RECIPES
from finelu.preconditioners.direct import cudss, klu
from finelu.properties import properties

POISSON = gallery.poisson5(34, 33)
MESH = sp.csr_matrix(abs(POISSON))  # positive definite, other signs
FLOW = gallery.convection_diffusion(10, 10, 10)
SADDLE = gallery.stokes(12)
CHAIN = sp.diags([[-1.0] * 2999, [2.5] * 3000, [-1.0] * 2999], [-1, 0, 1], format="csr")  # each row decides by itself
LONG_CHAIN = sp.diags([[-1.0] * 5999, [2.5] * 6000, [-1.0] * 5999], [-1, 0, 1], format="csr")
INDEFINITE = sp.csr_matrix(POISSON - 0.1 * sp.identity(1122))  # a few negative eigenvalues, a positive diagonal


def chosen(A, recipe="auto", method="auto"):
    return choose(traits(fl.as_csr(A, diagonal=False)), recipe, method)


@pytest.mark.parametrize(
    ("A", "recipe", "methods"),
    [
        (POISSON, "MILU0()", ("cg", "gmres")),
        (MESH, "IC0()", ("cg", "gmres")),
        (FLOW, "MILU0()", ("bicgstab", "gmres")),
        (sp.csr_matrix(FLOW * 1j), "ILU0()", ("bicgstab", "gmres")),
        (gallery.poisson5(20), "SparseLU()", ("gmres",)),
        (gallery.poisson5(25), "SparseLU()", ("gmres",)),
    ],
    ids=["M-matrix", "definite", "flow", "complex", "small", "light"],
)
def test_what_comes_first(A, recipe, methods):
    found = chosen(A)
    assert (repr(found.recipe), found.methods) == (recipe, methods)
    ladder = Ladder(fl.as_csr(A, diagonal=False), 1e-8)
    assert ladder.first()["recipe"] == recipe and ladder.first()["reason"] == found.reason


@pytest.mark.parametrize(
    "A",
    [gallery.poisson7(18), gallery.convection_diffusion(24), gallery.elasticity(12, 12, 12), SADDLE],
    ids=["elliptic", "flow", "body", "saddle"],
)
def test_traits_that_take_a_look_at_rows_wait_until_they_are_asked_for(A):
    A = fl.as_csr(A, diagonal=False)
    at_once, later = traits(A), traits(A, at_once=False)
    waiting = {"uneven", "turns", "crosses", "skew", "alike", "cancelling", "flow"} - set(vars(later))
    assert bool(waiting) is (A.n >= 5000) and waiting <= set(vars(at_once))
    assert later == at_once and replace(later, gpu=True) == replace(at_once, gpu=True)
    assert waiting <= set(vars(later))
    with pytest.raises(AttributeError, match="no attribute 'evenly'"):
        _ = later.evenly


def test_a_look_at_dense_rows_is_spared_where_the_direct_rung_takes_less_time_in_any_case():
    A = sp.lil_matrix(sp.identity(3000))
    A[0, :], A[5, 5] = 1.0, 0.0
    known = traits(A := fl.as_csr(sp.csr_matrix(A), diagonal=False))
    costs = Costs(A, known, rungs(known), math.inf, math.inf)
    costs.counted, costs.fill = True, Fill(A.nnz, 1.0)
    assert known.dense and costs.cheapest(["direct", "multilevel"], {}) == "direct" and "filling" not in vars(costs)
    assert costs.cheapest(["direct", "multilevel"], {"direct": 1e9}) == "multilevel" and "filling" in vars(costs)


def test_subdomains_come_first_on_the_cpu_where_they_are_expected_to_take_less_time(meanwhile):
    """At the shipped rates from 47,000 rows on; at those of a machine with many cores from 10,000."""
    definite, flow = (traits(fl.as_csr(A)) for A in (gallery.poisson5(100), gallery.atmosmodd_like(22, 22, 22)))
    many = replace(definite, n=200_000, nnz=1_000_000)

    def first(A):
        return repr(rungs(A)["cheap"].recipes[0])

    assert (first(definite), first(many)) == ("MILU0()", "Schwarz()")
    assert (first(replace(definite, n=46_000)), first(replace(definite, n=48_000))) == ("MILU0()", "Schwarz()")
    assert first(replace(many, uneven=True, n=80_000)) == "Schwarz()"
    assert (
        first(replace(many, coupled=0.4)) == first(replace(many, uneven=True, n=60_000)) == "MILU0()"
        and first(replace(many, m_matrix=False, n=49_000)) == "IC0()"  # a mesh with obtuse angles that is too small
    )
    assert first(replace(flow, n=10**6, crosses=False, skew=0.5)) == "MILU0()"  # not symmetric
    meanwhile(choose_module, RATES=replace(SHIPPED, parts=2e-10, parts_setup=5e-9))
    assert first(definite) == "Schwarz()" and first(replace(definite, n=9_999)) == "MILU0()"
    assert first(replace(definite, m_matrix=False)) == "IC0()"  # perhaps several unknowns a node
    assert first(replace(definite, mean_row=2.9)) == "MILU0()"  # a tree, whose complete factors have no fill
    meanwhile(choose_module, RATES=replace(SHIPPED, parts=3 * SHIPPED.parts))
    assert first(many) == "MILU0()"


def test_subdomains_of_nodes_come_first_on_an_elastic_body_where_they_are_expected_to_take_less_time(meanwhile):
    """At the shipped rates from some 28,000 rows on."""
    found = traits(fl.as_csr(gallery.elasticity(15, 12, 12)))
    assert 0.6 < found.alike < 0.75 and found.mean_row > 40
    many = replace(found, n=40_000)

    def first(A):
        return repr(rungs(A)["cheap"].recipes[0])

    assert (first(found), first(many)) == ("IC0()", "Schwarz(near_nullspace='auto')")
    for other in ({"alike": 0.4}, {"mean_row": 36.0}, {"coupled": 0.4}, {"m_matrix": True}):
        assert "auto" not in first(replace(many, **other))
    assert first(replace(many, definite=False)) == "ILU0()"
    meanwhile(choose_module, RATES=replace(SHIPPED, parts=2 * SHIPPED.parts))
    assert first(many) == "IC0()"


def test_on_a_gpu_subdomains_of_nodes_come_first_where_nodes_have_several_unknowns():
    for A in (gallery.elasticity(15, 12, 12), gallery.elastic_triangles(5, by_field=True)):
        found = replace(traits(fl.as_csr(A)), gpu=True, n=30_000)
        assert repr(rungs(found)["cheap"].recipes[0]) == "Schwarz(near_nullspace='auto')"
        assert repr(rungs(replace(found, alike=0.4))["cheap"].recipes[0]) == "Schwarz()"


@pytest.mark.parametrize("order", ["by node", "by field", "at random"])
def test_alike_tells_the_unknowns_of_a_node_in_any_order(order):
    for name, size in (("elasticity:9,8,8", 3), ("elastic_triangles:4", 2), ("poisson27:13", 1)):
        A = gallery.problem(name + (",by_field=True" if order == "by field" and size > 1 else ""))
        if order == "at random":
            rows = np.random.default_rng(0).permutation(A.shape[0])
            A = A[rows][:, rows]
        assert alike(fl.as_csr(A), most=100) == pytest.approx(1 - 1 / size, abs=0.05)


def test_a_large_elastic_body_is_solved_by_subdomains_of_nodes():
    A = gallery.elasticity(22, 20, 20)
    solution = fl.solve(A, np.ones(A.shape[0]))
    assert solution.converged and (solution.recipe, solution.method) == ("Schwarz(near_nullspace='auto')", "cg")
    assert "elastic body" in solution.explain()


def test_a_mass_matrix_is_not_taken_for_an_elliptic_equation():
    m, rows = 230, 230**2  # linear elements, each square of a grid two triangles
    shift = sp.eye(m, k=1)
    along = sp.kron(sp.eye(m), shift) + sp.kron(shift, sp.eye(m)) + sp.kron(shift, shift)
    A = sp.csr_matrix(6 * sp.eye(rows) + along + along.T) / 12
    found = traits(fl.as_csr(A))
    assert found.definite and not found.m_matrix and found.coupled > 0.9 and found.cancelling == 0
    assert repr(rungs(found)["cheap"].recipes[0]) == "IC0()" and not choose_module.asks_first(found)
    solution = fl.solve(A, np.ones(rows))
    assert solution.converged and (solution.recipe, solution.method) == ("IC0()", "cg") and solution.iterations < 10


def test_cancelling_is_the_part_of_the_rows_that_nearly_add_up_to_zero():
    n = 6000
    A = sp.diags([-np.ones(n - 1), np.full(n, 2.0), -np.ones(n - 1)], [-1, 0, 1]).tolil()
    A[n // 2 :, n // 2 :] = abs(A[n // 2 :, n // 2 :])  # the later half adds up to its magnitudes
    assert cancelling(fl.as_csr(A.tocsr())) == pytest.approx(0.5, abs=0.01)


def test_subdomains_come_first_on_a_large_mesh_with_obtuse_angles_unless_complete_factors_take_less_time(monkeypatch):
    found = traits(fl.as_csr(gallery.anisotropic_triangles(5)))
    assert found.definite and not found.m_matrix and found.mean_row < 12 and found.cancelling > 0.9
    many = replace(found, n=50_000)

    def first(A):
        return repr(rungs(A)["cheap"].recipes[0]), choose_module.asks_first(A)

    assert (first(found), first(many)) == (("IC0()", False), ("Schwarz()", True))
    for other in ({"coupled": 0.4}, {"mean_row": 13.0}, {"alike": 0.5}, {"n": 49_000}, {"cancelling": 0.4}):
        assert first(replace(many, **other)) == ("IC0()", False)
    A = gallery.anisotropic_triangles(6)
    for library in ("klu.nbklu", "feral.feral", "pardiso.mkl"):
        monkeypatch.setattr(f"finelu.preconditioners.direct.{library}", lambda: None)
    tried = fl.solve(A, np.ones(A.shape[0])).attempts
    assert [(a.recipe, a.method, a.outcome) for a in tried] == [("Schwarz()", "cg", "solved")]
    monkeypatch.setattr("finelu.auto.cost.RATES", replace(SHIPPED, superlu_entry=1e-9))
    assert [a.recipe for a in fl.solve(A, np.ones(A.shape[0])).attempts] == ["SparseLU()"]


def turning(n, peclet):
    """Convection and diffusion in a square of n x n cells, by a wind that turns round its middle."""
    x = np.arange(1, n + 1) / (n + 1)
    X, Y = np.pi * x[None, None, :], np.pi * x[None, :, None]
    u, v = peclet * np.sin(X) * np.cos(Y), -peclet * np.cos(X) * np.sin(Y)
    return convection((n, n, 1), (1.0, 1.0, 0.0), (u, v, 0 * u), 0.0, "upwind")


def test_subdomains_come_first_on_the_cpu_in_a_flow_that_turns(meanwhile):
    slow, found = (traits(fl.as_csr(turning(150, peclet))) for peclet in (0.3, 4.0))
    straight = traits(fl.as_csr(gallery.convection_diffusion(30, peclet=120.0)))
    assert (slow.turns, found.turns, straight.turns) == (False, True, False)

    def first(A):
        return [repr(recipe) for recipe in rungs(A)["cheap"].recipes]

    assert first(found) == ["Schwarz()", "MILU0()", "ILU0()"]
    for other in (slow, replace(found, coupled=0.8), replace(found, n=9_999), straight):
        assert first(other) == ["MILU0()", "ILU0()"]
    meanwhile(choose_module, RATES=replace(SHIPPED, parts=3 * SHIPPED.parts))
    assert first(found) == ["MILU0()", "ILU0()"]


def test_a_flow_that_turns_is_solved_by_subdomains():
    A = turning(150, 4.0)
    b = np.random.default_rng(0).uniform(-1, 1, A.shape[0])
    solution = fl.solve(A, b, rtol=1e-8)
    assert solution.converged and (solution.recipe, solution.method) == ("Schwarz()", "bicgstab")
    whole = fl.bicgstab(A, b, M=fl.MILU0().factor(A), rtol=1e-8, maxiter=2 * solution.iterations)
    assert not whole.converged


def test_subdomains_come_first_on_the_cpu_in_a_flow_that_crosses_the_order_of_the_rows(meanwhile):
    """At the shipped rates from some 122,000 rows on."""
    winds = (1, -1, 0.5), (0.3, 1, -0.05), (1, 1, 1), (-1, -1, -1), (1, -1, 0.5)
    peclets = 100.0, 100.0, 100.0, 100.0, 0.5
    crossing, *others = (
        traits(fl.as_csr(gallery.convection_diffusion(30, peclet=p, wind=w)))
        for p, w in zip(peclets, winds, strict=True)
    )
    assert crossing.crosses and not any(A.crosses for A in others)
    assert not traits(fl.as_csr(gallery.poisson7(30))).crosses

    def first(A):
        return [repr(recipe) for recipe in rungs(A)["cheap"].recipes]

    large = replace(crossing, n=125_000, skew=1.0)
    assert first(large) == ["Schwarz()", "MILU0()", "ILU0()"]
    for other in (crossing, replace(large, coupled=0.8), *(replace(A, n=10**6, skew=1.0) for A in others)):
        assert first(other) == ["MILU0()", "ILU0()"]
    meanwhile(choose_module, RATES=replace(SHIPPED, parts=2 * SHIPPED.parts))
    assert first(large) == ["MILU0()", "ILU0()"]


def test_subdomains_come_first_on_the_cpu_where_a_flow_hardly_carries_anything(meanwhile):
    """At the shipped rates from some 75,000 rows on, and from 200,000 where a third of A is skew."""
    A = gallery.convection_diffusion(40, peclet=10.0)
    known = traits(fl.as_csr(A))

    def first(n, skew):
        return repr(rungs(replace(known, n=n, skew=skew))["cheap"].recipes[0])

    assert 0.05 < known.skew < 0.15 and not known.crosses
    assert (first(70_000, 0.01), first(80_000, 0.01)) == ("MILU0()", "Schwarz()")
    assert (first(150_000, 0.3), first(210_000, 0.3), first(10**7, 0.34)) == ("MILU0()", "Schwarz()", "MILU0()")
    meanwhile(choose_module, RATES=replace(SHIPPED, parts=2e-10, parts_setup=5e-9))
    solution = fl.solve(A, np.ones(A.shape[0]), rtol=1e-8)
    assert solution.converged and (solution.recipe, solution.method) == ("Schwarz()", "bicgstab")


@pytest.mark.parametrize("peclet", [0.0, 1.0, 50.0])
def test_skew_is_that_of_the_entries_off_the_diagonal(peclet):
    A = gallery.convection_diffusion(19, peclet=peclet)  # 6,859 rows; all of them are alike except at the boundary
    rest = abs(A - sp.diags(A.diagonal()))
    exact = abs(A - A.T).sum() / (rest + rest.T).sum()
    assert skew(fl.as_csr(A)) == pytest.approx(exact, rel=1e-12, abs=1e-15)


def test_skew_of_one_way_couplings_is_one_and_sums_that_overflow_count_as_such():
    A = sp.diags([np.full(5999, -1.0), np.full(6000, 2.0)], [-1, 0], format="csr")
    assert skew(fl.as_csr(A)) == 1.0
    assert skew(fl.as_csr(sp.csr_matrix(A * 5e307 + sp.diags([5e307] * 5999, 1)))) == 1.0


def test_skew_of_rows_that_are_not_coupled_is_none():
    n = 511 * 20 + 1  # each row looked at is one of the identity
    rest = np.setdiff1d(np.arange(1, n), np.arange(0, n, 20))
    A = sp.identity(n).tolil()
    A[rest, rest], A[rest, rest - 1] = 2.0, -1.0
    assert skew(fl.as_csr(A.tocsr())) == 0.0
    assert fl.solve(A.tocsr(), np.ones(n)).converged


def test_skew_of_a_hermitian_matrix_is_none():
    A = gallery.poisson5(20).astype(complex)
    A += sp.diags([0.3j * np.ones(399), -0.3j * np.ones(399)], [1, -1])
    assert skew(fl.as_csr(A.tocsr())) == 0.0


def test_two_stages_come_first_for_a_pressure_and_what_it_carries(meanwhile):
    """On the CPU at the shipped rates from some 11,000 cells on."""
    found = traits(fl.as_csr(gallery.black_oil(15, 15, 15)))
    assert (found.flow, found.kind, found.m_matrix) == (3, "general", False)
    many = replace(found, n=36_000, nnz=730_000)

    def first(A):
        return [repr(recipe) for recipe in rungs(A)["cheap"].recipes]

    assert first(many) == first(replace(found, gpu=True)) == ["CPR()", "ILU0()"]
    assert first(found) == first(replace(many, flow=0)) == ["ILU0()"]
    meanwhile(choose_module, RATES=replace(SHIPPED, bicgstab=10 * SHIPPED.bicgstab))
    assert first(replace(many, n=24_000, nnz=490_000)) == ["CPR()", "ILU0()"]


def test_a_reservoir_is_solved_in_two_stages():
    A = gallery.black_oil(30, 25, 18)
    solution = fl.solve(A, np.ones(A.shape[0]))
    assert solution.converged and (solution.recipe, solution.method) == ("CPR()", "bicgstab")
    assert "like a pressure" in solution.explain()


def test_a_grid_of_many_rows_is_solved_by_subdomains():
    A = gallery.poisson5(360)
    solution = fl.solve(A, np.ones(A.shape[0]))
    assert solution.converged and (solution.recipe, solution.method) == ("Schwarz()", "cg")
    assert "subdomains fit" in solution.explain()


BODY = "Schwarz(near_nullspace='auto')"


@pytest.mark.parametrize(
    ("A", "recipes"),
    [
        (gallery.poisson5(100), ["Schwarz()", "MILU0()", "IC0()"]),
        (gallery.poisson7(22), ["Schwarz()", "MILU0()", "IC0()"]),  # of many rows at boundaries
        (gallery.poisson27(22), ["Schwarz()", "MILU0()", "IC0()"]),
        (gallery.anisotropic_triangles(5), ["Schwarz()", "IC0()"]),  # other signs
        (gallery.elasticity(10, 20, 20), [BODY, "Schwarz(local=ICT(), near_nullspace='auto')", "IC0()"]),
        (gallery.atmosmodd_like(22, 22, 22), ["Schwarz()", "MILU0()", "ILU0()"]),  # not symmetric
        (gallery.poisson5(99), ["MILU0()", "IC0()"]),  # too small
        (gallery.poisson5(100) + 0.5 * sp.identity(10_000), ["MILU0()", "IC0()"]),  # rows decide by themselves
        (gallery.convection_diffusion(22, 22, 22, peclet=100) * 1j, ["ILU0()"]),
    ],
    ids=["M-matrix", "small grid", "27 points", "definite", "elasticity", "flow", "small", "dominant", "complex"],
)
def test_subdomains_come_first_on_a_gpu_where_rows_are_coupled(A, recipes):
    found = traits(fl.as_csr(sp.csr_matrix(A)))
    first = rungs(replace(found, gpu=True))["cheap"].recipes
    assert [repr(recipe) for recipe in first] == recipes
    assert "Schwarz()" not in [repr(recipe) for recipe in rungs(found)["cheap"].recipes]


@pytest.mark.parametrize("missing", [True, False])
def test_which_systems_on_a_gpu_the_cpu_solves_sooner(meanwhile, missing):
    meanwhile(cudss, missing=lambda: "not here" if missing else "")

    def sooner(A, **other):
        found = replace(traits(fl.as_csr(sp.csr_matrix(A), diagonal=False)), gpu=True, **other)
        assert not sooner_on_host(replace(found, gpu=False))
        return bool(sooner_on_host(found))

    assert sooner(MESH) and sooner(FLOW) and sooner(gallery.poisson5(99)) and not sooner(gallery.poisson5(100))
    assert sooner(MESH, n=9_999) and not sooner(MESH, n=10_000)  # may be definite
    assert sooner(FLOW * 1j, n=24_999) and not sooner(FLOW * 1j, n=25_000)
    assert not sooner(FLOW, n=24_999, coupled=0.9)  # elliptic
    assert sooner(FLOW, n=24_999, coupled=0.9, m_matrix=False)  # as oscillating or systems of equations may be
    assert sooner(MESH, nnz=99_999) and not sooner(MESH, nnz=100_000)  # a GPU takes less for more entries
    assert sooner(SADDLE, n=10**6) is missing  # complete factors come first
    network = {"kind": "general", "mean_row": 5.0}
    assert sooner(SADDLE, n=99_999, **network) and sooner(SADDLE, n=100_000, **network) is missing
    assert sooner(SADDLE, n=99_999, kind="general", mean_row=12.5) is missing  # long rows fill
    tree = {"n": 10**6, "nnz": 3 * 10**6, "mean_row": 3.0, "longest_row": 12, "coupled": 1.0}
    assert sooner(POISSON, **tree) is missing  # subdomains fit it, but its complete factors stay sparse
    assert sooner(FLOW, **tree, m_matrix=False) is missing  # symmetric or not
    assert not sooner(POISSON, **tree | {"longest_row": 4}) and not sooner(FLOW, **tree | {"coupled": 0.1})
    assert not sooner(POISSON, **tree | {"mean_row": 13.0, "longest_row": 50})  # its rows are long
    assert sooner(CHAIN, n=10**6, levels=3000) and not sooner(CHAIN, n=10**6, levels=1)  # rows one after the other
    assert not sooner(CHAIN, n=10**6, levels=3000, coupled=0.9)


@pytest.mark.parametrize(("side", "by_size"), [(99, True), (100, False)])
def test_a_small_system_leaves_a_gpu_before_it_is_looked_at(meanwhile, side, by_size):
    module, A = sys.modules["finelu.auto.solve"], fl.as_csr(gallery.poisson5(side))
    there, looked = [True], []

    def moved(*given):
        there.clear()
        return given[:3]

    def look(A, **_):
        looked.append(bool(there))
        return replace(traits(A), gpu=bool(there))

    reason = {"sooner_on_host": lambda A: "a reason"}
    meanwhile(module, on_gpu=lambda array: bool(there), _moved=moved, traits=look, require_gpu=lambda: np, **reason)
    meanwhile(module, _with_kernels=lambda why: why)
    solution = fl.solve(A, np.ones(A.n))
    assert solution.converged and looked == [not by_size]
    assert ("fewer than 10000 rows" if by_size else "a reason") in solution.explain()


def test_chains_of_rows_are_seen_on_a_gpu(backend):
    there = backend.xp is not np
    for A, levels in ((LONG_CHAIN, 6000), (LONG_CHAIN * 1j, 6000), (gallery.poisson5(80), 159), (CHAIN, 1)):
        found = traits(fl.as_csr(backend.move(sp.csr_matrix(A))))
        assert found.levels == (levels if there else 1)  # of few rows none is counted
    gaps = LONG_CHAIN.copy()
    gaps[5, 5] = 0
    gaps.eliminate_zeros()
    assert traits(fl.as_csr(backend.move(gaps), diagonal=False)).levels == 1


def test_levels_are_the_longest_chain_or_a_bound_above_which_none_are_counted():
    def levels(A):
        return traits_module._levels_below(fl.as_csr(sp.csr_matrix(A)))

    assert levels(CHAIN) == levels(CHAIN * 1j) == 3000 > traits_module.LONG
    assert levels(gallery.poisson5(20)) == 39 and levels(sp.identity(50)) == 1
    lines = sp.block_diag([CHAIN[:1000, :1000], CHAIN[:700, :700], sp.identity(9)])
    assert levels(lines) == 1000  # the mean of such chains is a lower bound, and is below LONG
    apart = sp.kron(CHAIN, sp.identity(2), format="csr")  # each row depends on the one before the last
    assert levels(apart) == 3000


def test_on_a_gpu_cudss_is_a_rung_before_the_direct_solvers_of_the_host(meanwhile):
    large, small = (traits(fl.as_csr(gallery.poisson5(side))) for side in (100, 20))
    meanwhile(cudss, missing=lambda: "")
    assert "cudss" not in rungs(large) and "cudss" not in rungs(replace(small, gpu=True))
    found = rungs(replace(large, gpu=True))
    assert list(found) == ["cheap", "threshold", "cudss", "direct", "multilevel"]
    assert repr(found["cudss"].recipes) == "(SparseLU(backend='cudss'),)" and "cuDSS" in found["cudss"].reason
    assert found["direct"] == rungs(large)["direct"]
    assert compared(list(found)) == ["cheap", "threshold", "cudss", "multilevel"]
    assert compared(["direct", "multilevel"]) == ["direct", "multilevel"]
    A = fl.as_csr(gallery.poisson5(100))
    costs = Costs(A, replace(large, gpu=True), found, None, math.inf)
    assert costs.seconds("cudss") == SHIPPED_ON_GPU.cudss_overhead + SHIPPED_ON_GPU.cudss_row * A.n
    costs = Costs(A, replace(large, gpu=True), found, 1e3, math.inf)
    assert costs.seconds("cudss") == math.inf  # not even A's own entries fit


def test_gaps_on_the_diagonal_leave_the_direct_and_the_multilevel_rung():
    assert repr(chosen(SADDLE).recipe).startswith("SparseLU(")


def test_klu_comes_before_a_count_for_networks_with_gaps_that_have_no_symmetry_for_other_libraries(meanwhile):
    meanwhile(klu, nbklu=lambda: "here")
    saddle = traits(fl.as_csr(SADDLE, diagonal=False))
    network = replace(saddle, longest_row=2 * math.ceil(saddle.mean_row))

    def first(found):
        return repr(rungs(found)["direct"].recipes[0])

    assert first(replace(network, kind="general")) == "SparseLU(backend='klu')"
    assert first(network) == first(replace(saddle, kind="general")) == "SparseLU()"


@pytest.mark.parametrize("name", RECIPES)
def test_cg_where_the_factors_may_be_hermitian_positive(name):
    recipe = RECIPES[name](block_size=2) if name in ("block_ilu0", "cpr") else RECIPES[name]()
    general = ("ilut", "parilu", "parilut", "multilevel", "block_ilu0", "cpr", "sparse_lu")
    assert chosen(POISSON, recipe).method == ("gmres" if name in general else "cg")
    assert chosen(FLOW, recipe).method == chosen(SADDLE, recipe).method == "gmres"


def test_what_the_caller_has_fixed_stays():
    assert chosen(POISSON, None).methods == ("cg", "gmres") and chosen(FLOW, None).methods == ("gmres",)
    assert chosen(POISSON, "auto", "minres").methods == ("minres",)
    assert chosen(FLOW, fl.ILUT(), "bicg").methods == ("bicg",)


@pytest.mark.parametrize("name", ["milu0", "ilu0", "iluk", "ic0", "jacobi", "ilut"])
@pytest.mark.parametrize("A", [POISSON, FLOW], ids=["definite", "flow"])
def test_all_that_solve_by_a_recipe_take_the_same_method(name, A):
    if name == "ic0" and A is FLOW:
        pytest.skip("needs a Hermitian A")
    b = np.ones(A.shape[0])
    expected = chosen(A, RECIPES[name]()).method
    assert fl.solve(A, b, recipe=name).method == expected
    system = System(fl.as_csr(A), Options(recipe=name))
    assert system._methods[0] == expected
    found, left_out = candidates(fl.as_csr(A), properties(fl.as_csr(A)), [name], ["cpu"])  # of compare
    assert [candidate.method for candidate in found] == [expected] and not left_out


def test_gmres_goes_on_where_cg_meets_an_indefinite_matrix():
    b = np.ones(1122)
    assert chosen(INDEFINITE, fl.ILU0()).methods == ("cg", "gmres")
    solution = fl.solve(INDEFINITE, b, recipe="ilu0", rtol=1e-6)
    assert solution.converged and solution.method == "gmres"
    x = System(fl.as_csr(INDEFINITE), Options(recipe="ilu0", rtol=1e-6)).solve(b)
    assert np.linalg.norm(b - INDEFINITE @ x) <= 1.01e-6 * np.linalg.norm(b)
    rows = compare(INDEFINITE, b, budget=20, recipes=["ilu0"], device="cpu", rtol=1e-6).measurements
    assert [row.method for row in rows][:2] == ["cg", "gmres"] and rows[1].solved


def test_the_command_line_goes_on_with_gmres(tmp_path, capsys):
    scipy.io.mmwrite(tmp_path / "A.mtx", INDEFINITE)
    status = cli.main(["solve", str(tmp_path / "A.mtx"), "--recipe", "ilu0", "--rtol", "1e-6", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert status == 0 and result["method"] == "gmres" and result["restart"] is not None


def test_complete_factors_are_chosen_for_a_tolerance_or_for_their_operations_and_the_reason_says_which():
    A, beyond = gallery.poisson5(60), "because incomplete factors may not reach this tolerance"
    b = np.random.default_rng(0).standard_normal(A.shape[0])
    assert beyond in fl.solve(A, b, rtol=1e-12).explain() and beyond not in fl.solve(A, b, rtol=1e-8).explain()
    small = gallery.poisson5(8)
    assert "the system is small enough" in fl.solve(small, np.ones(64), rtol=1e-12).explain()
    gaps = sp.csr_matrix(sp.bmat([[gallery.poisson5(50), sp.eye(2500)], [sp.eye(2500), None]]))
    text = fl.solve(gaps, np.ones(5000), recipe="auto").explain()
    assert "because it is expected to take the least time, by a count of its operations" in " ".join(text.split())
    factors = rungs(replace(traits(fl.as_csr(A)), gpu=True))["direct"]
    assert factors.why(True) != factors.why(False) == factors.reason
