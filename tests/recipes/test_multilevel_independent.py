"""MultilevelILU by independent sets: on a GPU, and with the specification in place of its kernels."""

import sys

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, PATTERNS, in_dtype, perturbed, refused, values
from conftest import Backend
from hypothesis import given
from hypothesis import strategies as st

import finelu as fl
from finelu import MultilevelILU, ParameterError, gallery
from finelu.device import to_host
from finelu.errors import FineluError
from finelu.kernels.reference import independent as specification
from finelu.preconditioners.multilevel import factors as recipes
from finelu.preconditioners.multilevel import independent, settings

NEVER = float("inf")
EXACT = {"drop_tol": 0.0, "condest": NEVER, "fill": NEVER}


class Specified:
    """The host, where `kernels_for` finds the specification of independent sets."""

    name, xp = "cpu", np
    move = staticmethod(lambda A: A)


@pytest.fixture
def gpu(cupy):
    return Backend("cuda")


@pytest.fixture(params=["specified", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    monkeypatch.setattr(recipes, "AT_ONCE", 0)
    if request.param == "cuda":
        return request.getfixturevalue("gpu")
    import finelu.kernels.cpu as cpu

    monkeypatch.setitem(sys.modules, "finelu.kernels.cpu.independent", specification)
    monkeypatch.setattr(cpu, "independent", specification, raising=False)
    for module in (recipes, settings):
        monkeypatch.setattr(module, "on_gpu", lambda array: True)
    return Specified()


def inverse(device, F, trans="N"):
    return to_host(F.solve(device.move(np.eye(F.shape[0], dtype=F.dtype)), trans))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("low_memory", [True, False])
@pytest.mark.parametrize("symmetric", [None, False])
def test_without_dropping_m_is_a(device, dtype, low_memory, symmetric):
    for A in (gallery.poisson5(9, 8), gallery.convection_diffusion(4)):
        A = in_dtype(A, dtype)
        F = MultilevelILU(**EXACT, dense_size=5, low_memory=low_memory, symmetric=symmetric).factor(device.move(A))
        assert F.report.levels[0]["steps"] > 1
        for trans, B in (("N", A), ("T", A.T), ("H", A.conj().T)):
            error = abs(inverse(device, F, trans) @ B - np.eye(A.shape[0])).max()
            assert error < 1e4 * np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
def test_m_of_a_hermitian_matrix_is_hermitian(device, dtype):
    A = in_dtype(gallery.poisson5(9, 8), dtype)
    F = MultilevelILU(drop_tol=0.1, dense_size=5).factor(device.move(A))
    M = inverse(device, F)
    assert F.report["kind"] == "hermitian" and abs(M - M.conj().T).max() < 100 * np.finfo(dtype).eps * abs(M).max()
    assert np.linalg.eigvalsh(M).min() > 0


@pytest.mark.parametrize("symmetric", [None, False])
@pytest.mark.parametrize("low_memory", [True, False])
def test_nothing_may_be_left(device, symmetric, low_memory):
    for A in (sp.identity(600), sp.identity(100) + 1e-5 * gallery.poisson5(10), gallery.convection_diffusion(3)):
        A = sp.csr_matrix(A)
        drop_tol = 0.5 if A.shape[0] == 27 else None
        F = MultilevelILU(drop_tol=drop_tol, dense_size=0, symmetric=symmetric, low_memory=low_memory).factor(
            device.move(A)
        )
        b = A @ values(A.shape[0], "f8")
        assert F.report.levels[-1]["n"] == 0
        assert fl.gmres(device.move(A), device.move(b), M=F, rtol=1e-10).converged
        assert np.isfinite(inverse(device, F, "T")).all()


def test_where_independent_sets_find_no_end_crouts_form_is_taken(device, monkeypatch):
    def refuses(*_):
        raise MemoryError("no room for tables")

    A = gallery.poisson5(9)
    monkeypatch.setattr(independent, "factored", refuses)
    F = MultilevelILU(dense_size=5).factor(device.move(A))
    assert "steps" not in F.report.levels[0] and "no room for tables" in F.report["warning"]
    with pytest.raises(MemoryError, match="no room"):
        MultilevelILU(form="independent", dense_size=5).factor(device.move(A))


def test_stored_zeros_without_a_mirror_image_are_looked_at_from_both_sides(device):
    A = gallery.poisson5(7).tolil()
    A = sp.csr_matrix(A)
    extra = sp.coo_matrix((np.zeros(20), (np.arange(20), np.arange(20) + 25)), shape=A.shape)
    B = sp.csr_matrix(
        (np.append(A.data, extra.data), (np.append(A.tocoo().row, extra.row), np.append(A.tocoo().col, extra.col))),
        shape=A.shape,
    )
    assert B.nnz == A.nnz + 20
    F = MultilevelILU(**EXACT, dense_size=5).factor(device.move(B))
    assert F.report["kind"] == "hermitian"
    assert abs(inverse(device, F) @ A - np.eye(49)).max() < 1e-12


def test_rows_whose_estimate_is_too_large_go_to_the_next_level(device):
    A = gallery.poisson5(14)
    F = MultilevelILU(condest=2.0, dense_size=4).factor(device.move(A))
    first, second = F.report.levels[:2]
    assert first["put_off"][0] == second["n"] > 0 and first["estimate"] <= 2.0
    b = A @ np.ones(196)
    assert fl.gmres(device.move(A), device.move(b), M=F, rtol=1e-10).converged


def test_the_fill_limit_is_kept_and_counted(device):
    A = gallery.convection_diffusion(5)
    full = MultilevelILU(drop_tol=1e-4, dense_size=5, fill=NEVER).factor(device.move(A))
    short = MultilevelILU(drop_tol=1e-4, dense_size=5, fill=0.5).factor(device.move(A))
    assert short.nnz < full.nnz and short.report.levels[0]["dropped"][1] > 0 == full.report.levels[0]["dropped"][1]


def test_a_symmetric_indefinite_matrix_gets_pairs_unless_asked_not_to(device):
    P = gallery.poisson5(5)
    saddle = sp.csr_matrix(sp.bmat([[None, P], [P, None]]) + sp.identity(50) * 1e-3)
    F = MultilevelILU(dense_size=4).factor(device.move(saddle))
    assert F.report.levels[0]["pairs"] > 0 and "steps" not in F.report.levels[0]
    A = sp.csr_matrix(gallery.poisson5(8) - 2.1 * sp.identity(64))
    F = MultilevelILU(form="independent", dense_size=4).factor(device.move(A))
    assert F.report.levels[0]["pairs"] == 0 < F.report.levels[0]["steps"] and F.report["kind"] == "hermitian"
    b = A @ values(64, "f8")
    assert fl.gmres(device.move(A), device.move(b), M=F, rtol=1e-8).converged


@pytest.mark.parametrize("options", [{"form": "crout"}, {"ordering": "rcm"}, {"parts": 1, "ordering": None}])
def test_crouts_form_is_taken_where_it_or_an_order_is_asked_for(device, options):
    F = MultilevelILU(**options, dense_size=4).factor(device.move(gallery.poisson5(8)))
    assert "steps" not in F.report.levels[0]


def test_an_order_and_independent_sets_do_not_go_together(device):
    for options in ({"ordering": "amd"}, {"parts": 2}):
        with refused(ParameterError, match="leave ordering and parts out"):
            MultilevelILU(form="independent", **options).factor(device.move(gallery.poisson5(8)))


def test_on_a_cpu_there_are_no_independent_sets():
    with refused(ParameterError, match="for an A on a GPU; leave form out"):
        MultilevelILU(form="independent").factor(gallery.poisson5(8))
    with pytest.raises(ParameterError, match=r"form must be one of auto, crout, independent. Did you mean 'crout'"):
        MultilevelILU(form="crowt").factor(gallery.poisson5(8))


@pytest.mark.parametrize("symmetric", [None, False])
def test_an_update_is_a_factorization_of_the_new_values(device, symmetric):
    A = gallery.convection_diffusion(4)
    B = perturbed(A)
    F = MultilevelILU(dense_size=5, symmetric=symmetric).factor(device.move(A))
    F.update(device.move(B))
    assert np.linalg.norm(inverse(device, F) @ B.toarray() - np.eye(64), 2) < 0.2


def test_a_definite_matrix_that_an_update_makes_indefinite_is_factored_anew(device):
    A = gallery.poisson5(8)
    F = MultilevelILU(dense_size=5).factor(device.move(A))
    B = A - 2.1 * sp.identity(64)
    F.update(device.move(sp.csr_matrix(B)))
    b = B @ values(64, "f8")
    assert fl.gmres(device.move(sp.csr_matrix(B)), device.move(b), M=F, rtol=1e-8).converged


def test_what_is_definite_but_for_the_sign_serves_minres(device):
    A = -gallery.poisson5(8)
    F = MultilevelILU(form="independent", definite=True, dense_size=5).factor(device.move(A))
    assert np.linalg.eigvalsh(inverse(device, F)).min() > 0
    b = A @ values(64, "f8")
    assert fl.minres(device.move(A), device.move(b), M=F, rtol=1e-8).converged


@PATTERNS
@given(
    seed=st.integers(0, 2**32),
    density=st.sampled_from([0.05, 0.2, 0.5]),
    dense_size=st.sampled_from([0, 3]),
    drop_tol=st.sampled_from([0.0, 1e-2]),
    matching=st.booleans(),
)
def test_any_matrix_has_finite_factors_or_a_clear_error(device, seed, density, dense_size, drop_tol, matching):
    rng, n = np.random.default_rng(seed), 12
    M = np.where(rng.random((n, n)) < density, rng.uniform(-2, 2, (n, n)), 0) + np.diag(rng.choice([0, 1.0, 4.0], n))
    A = sp.csr_matrix(M * 10.0 ** rng.uniform(-20, 20, n)[:, None])
    try:
        F = MultilevelILU(form="independent", drop_tol=drop_tol, matching=matching, dense_size=dense_size).factor(
            device.move(A)
        )
    except FineluError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert "\n" not in refused
        return
    assert np.isfinite(inverse(device, F)).all()


@pytest.mark.gpu
def test_small_matrices_are_crouts_by_default(gpu):
    for side, at_once in ((30, False), (32, True)):
        F = MultilevelILU().factor(gpu.move(gallery.poisson7(side)))
        assert ("steps" in F.report.levels[0]) == at_once


@pytest.mark.gpu
def test_the_bits_are_the_same_in_every_run(gpu):
    for A in (gallery.poisson7(14), gallery.convection_diffusion(14)):
        G, r = gpu.move(A), gpu.move(values(A.shape[0], "f8"))
        first, second = (to_host(MultilevelILU(form="independent", dense_size=50).factor(G).solve(r)) for _ in range(2))
        np.testing.assert_array_equal(first, second)


@pytest.mark.gpu
def test_factors_of_a_mesh_are_as_good_as_crouts(gpu):
    A = gallery.poisson7(24)
    G, b = gpu.move(A), gpu.move(A @ values(A.shape[0], "f8"))
    steps = [
        fl.gmres(G, b, M=MultilevelILU(form=form).factor(G), rtol=1e-8).iterations for form in ("independent", "crout")
    ]
    assert steps[0] <= 1.3 * steps[1]
