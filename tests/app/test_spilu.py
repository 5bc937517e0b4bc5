"""spilu: SciPy's attributes and their meaning, by definition, by limit, in a SciPy program, by bad input."""

import inspect

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as sla
from checks import DTYPES, ON_GPU, PATTERNS, assert_close, dominant_matrices, in_dtype, one_line, values
from conftest import real_matrix
from hypothesis import given

import finelu as fl
from finelu.errors import MatrixError, ParameterError, StructurallySingular, ZeroPivot
from finelu.interop.scipy import MatchedILUT


def permuted_problem(n=60, dtype="float64", seed=3):
    """A dominant matrix whose rows were exchanged and whose rows and columns were scaled badly: no entry of the
    diagonal is stored, and the sizes of the entries say nothing."""
    rng = np.random.default_rng(seed)
    A = sp.random(n, n, 4 / n, random_state=rng) + sp.diags(rng.uniform(3, 4, n))
    A = sp.diags(2.0 ** rng.integers(-8, 8, n)) @ A @ sp.diags(2.0 ** rng.integers(-8, 8, n))
    A = in_dtype(sp.csr_matrix(A), dtype)[np.roll(np.arange(n), 7)].tocsc()
    A.setdiag(0)
    A.eliminate_zeros()
    return A


def permutations(F):
    """Pr and Pc, as SciPy's documentation of SuperLU makes them of perm_r and perm_c."""
    n, one = F.shape[0], np.ones(F.shape[0])
    Pr = sp.csc_matrix((one, (F.perm_r, np.arange(n))))
    Pc = sp.csc_matrix((one, (np.arange(n), F.perm_c)))
    return Pr, Pc


def product(F, fetch=lambda v: v):
    """Pr^T L U Pc^T on the host."""
    n, one = F.shape[0], np.ones(F.shape[0])
    Pr = sp.csc_matrix((one, (fetch(F.perm_r), np.arange(n))))
    Pc = sp.csc_matrix((one, (np.arange(n), fetch(F.perm_c))))
    return Pr.T @ (fetch(F.L) @ fetch(F.U)) @ Pc.T


def relative(E, A):
    """|E_ij| against the largest magnitudes of row i and column j of A: 0.1 is a tenth of what stands there."""
    E = sp.coo_matrix(E)
    rows, columns = abs(A).max(axis=1).toarray().ravel(), abs(A).max(axis=0).toarray().ravel()
    return (abs(E.data) / np.sqrt(rows[E.row] * columns[E.col])).max(initial=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_dropped_is_the_complete_factorization(backend, dtype):
    A = permuted_problem(dtype=dtype)
    F = fl.spilu(backend.move(A), drop_tol=0, fill_factor=1000)
    eps = np.finfo(dtype).eps
    assert relative(product(F, backend.fetch) - A, A) < 1000 * eps
    x = values((A.shape[0], 2), dtype)
    for trans, op in (("N", A), ("T", A.T), ("H", A.conj().T)):
        b = op @ x
        r = b - op @ backend.fetch(F.solve(backend.move(b), trans))
        assert (abs(r) <= 1e5 * eps * (abs(op) @ abs(x))).all()


@PATTERNS
@given(A=dominant_matrices())
def test_any_pattern_is_factored_completely_where_nothing_is_dropped(A):
    F = fl.spilu(A, drop_tol=0, drop_rule="basic")
    assert_close(product(F).toarray(), A.toarray(), ulps=64, scale=abs(A).max())


@pytest.mark.parametrize("thresh", [None, 0])
def test_what_is_dropped_is_small(thresh):
    A = sp.csc_matrix(fl.gallery.problem("convection_diffusion:8"))
    dropped = []
    for drop_tol in (1e-1, 1e-2, 1e-3, 1e-4):
        E = product(fl.spilu(A, drop_tol=drop_tol, diag_pivot_thresh=thresh)) - A
        dropped.append(abs(E).max() / abs(A).max())
        assert dropped[-1] < 10 * drop_tol
    assert dropped == sorted(dropped, reverse=True) and dropped[-1] > 0


def test_solve_applies_the_inverse_of_the_product_of_the_factors():
    A = permuted_problem()
    F = fl.spilu(A, drop_tol=1e-2, fill_factor=1.5)
    M = product(F)
    assert relative(M - A, A) > 1e-4  # something was dropped
    x = values((A.shape[0], 3), "float64")
    for trans, op in (("N", M), ("T", M.T), ("H", M.T)):
        for v in (x, x[:, 0]):
            r = op @ F.solve(op @ v, trans) - op @ v
            assert (abs(r) <= 1e-10 * (abs(op) @ abs(v))).all()


def test_attributes_are_those_of_scipy():
    A = permuted_problem()
    F, theirs = fl.spilu(A), sla.spilu(A)
    assert F.shape == theirs.shape and isinstance(F.nnz, int)
    for name in ("perm_r", "perm_c"):
        ours, other = getattr(F, name), getattr(theirs, name)
        assert ours.dtype == other.dtype and sorted(ours) == list(range(A.shape[0]))
    for name in ("L", "U"):
        ours, other = getattr(F, name), getattr(theirs, name)
        assert ours.format == other.format == "csc" and ours.dtype == other.dtype and ours.shape == other.shape
    assert (F.L.diagonal() == 1).all() and sp.triu(F.L, 1).nnz == 0
    assert (F.U.diagonal() != 0).all() and sp.tril(F.U, -1).nnz == 0
    assert F.nnz == F.L.nnz + F.U.nnz - A.shape[0]
    b = values(A.shape[0], "float64")
    assert F.solve(b).shape == theirs.solve(b).shape and F.solve(b).dtype == theirs.solve(b).dtype


def test_perm_r_and_perm_c_say_where_rows_and_columns_go():
    A = permuted_problem()
    F = fl.spilu(A, drop_tol=0, drop_rule="basic")
    Pr, Pc = permutations(F)
    moved = (Pr @ A @ Pc).toarray()
    dense = A.toarray()
    i, j = 5, 11
    assert moved[F.perm_r[i], F.perm_c[j]] == dense[i, j]
    assert abs(moved - (F.L @ F.U).toarray()).max() <= 1e-12 * abs(moved).max()


def test_a_program_for_scipy_moves_by_its_import(backend):
    A = sp.csc_matrix(fl.gallery.problem("convection_diffusion:8"))
    b = values(A.shape[0], "float64")
    if backend.name == "cpu":
        from scipy.sparse.linalg import LinearOperator, gmres
    else:
        from cupyx.scipy.sparse.linalg import LinearOperator, gmres
    M = LinearOperator(A.shape, fl.spilu(backend.move(A)).solve, dtype=A.dtype)
    tolerance = "rtol" if "rtol" in inspect.signature(gmres).parameters else "tol"  # as CuPy 13 calls it
    x, info = gmres(backend.move(A.tocsr()), backend.move(b), M=M, maxiter=20, restart=4, **{tolerance: 1e-8})
    assert info == 0
    assert np.linalg.norm(b - A @ backend.fetch(x)) <= 2e-8 * np.linalg.norm(b)


@ON_GPU
def test_on_a_gpu_attributes_are_those_of_cupy(backend):
    import cupy
    import cupyx.scipy.sparse as csp

    A = permuted_problem()
    F, host = (fl.spilu(S, drop_tol=0, fill_factor=float("inf")) for S in (csp.csc_matrix(A), A))
    assert all(isinstance(p, cupy.ndarray) and p.dtype == np.int32 for p in (F.perm_r, F.perm_c))
    assert all(csp.issparse(X) and X.format == "csr" for X in (F.L, F.U))
    assert F.report["factored_on"] == "GPU" and host.report["factored_on"] == "CPU"
    assert (F.perm_r.get() == host.perm_r).all() and (F.perm_c.get() == host.perm_c).all()
    for name in ("L", "U"):
        want = sp.csr_matrix(getattr(host, name))
        assert abs(getattr(F, name).get() - want).max() <= 1e-10 * abs(want).max()


@pytest.mark.parametrize("fill_factor", [1.0, 1.3, 2.0])
def test_fill_factor_bounds_the_entries_and_is_used(fill_factor):
    A = sp.csc_matrix(fl.gallery.problem("poisson5:40"))
    F = fl.spilu(A, drop_tol=0, fill_factor=fill_factor)
    assert 0.6 * fill_factor * A.nnz <= F.nnz <= fill_factor * A.nnz
    assert F.report["drop_tol"] > 0 and F.report["factorizations"] > 1


def test_drop_rule_basic_has_no_bound():
    A = sp.csc_matrix(fl.gallery.problem("poisson5:40"))
    free = fl.spilu(A, drop_tol=1e-6, fill_factor=1.5, drop_rule="basic")
    bound = fl.spilu(A, drop_tol=1e-6, fill_factor=1.5, drop_rule=["basic", "area"])
    assert bound.nnz <= 1.5 * A.nnz < 2 * A.nnz < free.nnz


def test_defaults_are_those_of_scipy():
    assert fl.spilu(permuted_problem()).recipe == MatchedILUT(drop_tol=1e-4, fill_factor=10.0)


def test_permc_spec_orders_rows_and_columns():
    A = sp.csc_matrix(fl.gallery.problem("poisson5:20"))
    natural = fl.spilu(A, permc_spec="NATURAL", diag_pivot_thresh=0)
    assert (natural.perm_r == np.arange(A.shape[0])).all() and (natural.perm_c == natural.perm_r).all()
    fill = {"NATURAL": natural.nnz}
    for spec in ("MMD_AT_PLUS_A", "mmd", "rcm", "amd", "auto", None):
        F = fl.spilu(A, permc_spec=spec, drop_tol=0, drop_rule="basic", diag_pivot_thresh=0)
        assert (F.perm_r == F.perm_c).all() and (F.perm_r != np.arange(A.shape[0])).any()
        fill[spec] = F.nnz
    complete = fl.spilu(A, permc_spec="NATURAL", drop_tol=0, drop_rule="basic").nnz
    assert fill["MMD_AT_PLUS_A"] == fill["mmd"] < complete
    assert fill["amd"] == fill["auto"] == fill[None] < complete


def test_rows_and_columns_of_any_size_are_dropped_from_alike():
    A = permuted_problem()
    rng = np.random.default_rng(0)
    r, c = (2.0 ** rng.integers(-20, 20, A.shape[0]) for _ in range(2))
    F = fl.spilu(sp.csc_matrix(sp.diags(r) @ A @ sp.diags(c)), drop_tol=1e-3)
    assert F.nnz < 0.9 * fl.spilu(A, drop_tol=0, drop_rule="basic").nnz  # something was dropped
    b = values(A.shape[0], "float64")
    M = sla.LinearOperator(A.shape, lambda v: c * F.solve(r * v), dtype=float)
    assert fl.gmres(A, b, M=M, rtol=1e-10, maxiter=12).converged


def test_update_keeps_the_permutations_and_takes_the_values(backend):
    A = permuted_problem()
    B = A.copy()
    B.data = B.data * np.random.default_rng(1).uniform(0.8, 1.25, B.nnz)
    F = fl.spilu(backend.move(A), drop_tol=0, drop_rule="basic")
    before = backend.fetch(F.perm_r), backend.fetch(F.perm_c)
    assert F.update(backend.move(B)) is F
    assert (backend.fetch(F.perm_r) == before[0]).all() and (backend.fetch(F.perm_c) == before[1]).all()
    assert relative(product(F, backend.fetch) - B, B) < 1e-10


@pytest.mark.parametrize("name", ["west0479", "west0497", "gre_115", "mahindas", "adder_dcop_05", "lhr01"])
def test_real_systems_with_gaps_in_the_diagonal_are_solved(name):
    A = real_matrix(name)
    b = np.random.default_rng(0).uniform(-0.5, 0.5, A.shape[0])
    solution = fl.gmres(A, b, M=fl.spilu(A), rtol=1e-8, maxiter=30)
    assert solution.converged, solution


def test_a_dense_or_integer_matrix_is_taken_too():
    A = permuted_problem()
    assert (fl.spilu(A.toarray()).solve(np.ones(60)) == fl.spilu(A).solve(np.ones(60))).all()
    assert fl.spilu(sp.identity(4, dtype=int) * 2).solve(np.ones(4)).tolist() == [0.5] * 4


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"drop_tol": -1}, "drop_tol must be a number >= 0"),
        ({"drop_tol": "small"}, "drop_tol must be"),
        ({"drop_tol": float("inf")}, "drop_tol must be a finite number"),
        ({"drop_tol": float("nan")}, "drop_tol must be"),
        ({"fill_factor": 0.5}, "fill_factor must be a number >= 1"),
        ({"drop_rule": "basic,prows"}, "'basic,prows' is not offered; 'basic,area'"),
        ({"drop_rule": "area"}, "is not offered"),
        ({"permc_spec": "COLAMD"}, "'COLAMD' is not offered.*MMD_AT_PLUS_A"),
        ({"permc_spec": [1, 2]}, r"\[1, 2\] is not offered"),
        ({"drop_rule": 3}, "drop_rule=3 is not offered"),
        ({"diag_pivot_thresh": 0.1}, "diag_pivot_thresh=0.1.*leave it out"),
        ({"relax": 0}, "relax=0"),
        ({"panel_size": "big"}, "panel_size='big'"),
        ({"options": {"SymmetricMode": True}}, "SuperLU's own"),
    ],
)
def test_parameters_without_a_meaning_are_refused(arguments, match):
    with pytest.raises(ParameterError, match=match) as error:
        fl.spilu(permuted_problem(), **arguments)
    one_line(error)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"ordering": "colamd"}, r"ordering must be one of None, .*rcm"),
        ({"matching": 1}, "matching must be True or False"),
    ],
)
def test_the_recipe_refuses_wrong_parameters_too(wrong, match):
    with pytest.raises(ParameterError, match=match):
        MatchedILUT(**wrong)


def test_parameters_that_do_no_harm_are_accepted():
    A = permuted_problem()
    F = fl.spilu(A, relax=4, panel_size=10, options={})
    assert (F.solve(np.ones(60)) == fl.spilu(A).solve(np.ones(60))).all()


def test_a_misspelt_parameter_is_a_type_error():
    with pytest.raises(TypeError, match="drop_tolerance"):
        fl.spilu(permuted_problem(), drop_tolerance=1e-3)


def test_a_matrix_that_is_structurally_singular_is_reported_as_such():
    A = permuted_problem().tolil()
    A[7] = 0
    with pytest.raises(StructurallySingular, match="row 7") as error:
        fl.spilu(A.tocsc())
    one_line(error)


def test_a_singular_matrix_is_an_error_that_names_a_row_of_it():
    A = sp.block_diag([sp.identity(3) * 2, np.ones((2, 2)), sp.identity(3)], format="csc")
    for spec in ("NATURAL", "rcm"):
        with pytest.raises(ZeroPivot, match=r"row [34] is 0.0") as error:
            fl.spilu(A[[1, 2, 0, 3, 4, 5, 6, 7]], permc_spec=spec)
        assert "MatchedILUT" in one_line(error)


def test_without_row_exchanges_the_diagonal_must_be_full():
    with pytest.raises(MatrixError, match="stores no diagonal entry in row"):
        fl.spilu(permuted_problem(), diag_pivot_thresh=0)


@pytest.mark.parametrize(
    ("A", "match"),
    [
        (np.ones((2, 3)), r"shape \(2, 3\)"),
        (np.array([[1, np.nan], [0, 1]]), "NaN or Inf in row 0"),
        ("A", "A is a str"),
    ],
)
def test_what_is_no_matrix_is_refused(A, match):
    with pytest.raises(MatrixError, match=match):
        fl.spilu(A)


def test_wrong_right_hand_sides_are_refused():
    F = fl.spilu(permuted_problem())
    with pytest.raises(MatrixError, match="60 rows"):
        F.solve(np.ones(59))
    with pytest.raises(ParameterError, match="trans='C'"):
        F.solve(np.ones(60), "C")


def test_factors_that_do_not_fit_the_dtype_without_the_scaling_are_refused_but_solve():
    A = sp.csc_matrix(np.array([[1e-30, 1e-30], [1e30, 1e28]], dtype=np.float32))
    F = fl.spilu(A, drop_tol=0, permc_spec="NATURAL", diag_pivot_thresh=0)
    with pytest.raises(MatrixError, match="L without the scaling"):
        _ = F.L
    x = F.solve((A @ np.ones(2, np.float32)).astype(np.float32))
    np.testing.assert_allclose(x, 1, rtol=1e-5)
