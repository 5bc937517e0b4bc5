"""What is said to someone who types what another library takes: each message names what to type."""

import copy
import pickle
import re

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import finelu as fl
from finelu.errors import NotConverged, UnknownParameter, WrongType, counted

A = fl.gallery.poisson5(8)
b = np.ones(64)


class Multigrid:
    """An object such as PyAMG's solvers."""

    def aspreconditioner(self):
        return sp.identity(64)

    def solve(self, b):
        return b


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: fl.solve(A, b, tol=1e-6),
            r"solve\(\) got an unexpected keyword argument 'tol'. Did you mean 'rtol'\?",
        ),
        (lambda: fl.solve(A, b, rtl=1e-6), "Did you mean 'rtol'"),
        (lambda: fl.cg(A, b, tol=1e-6), r"cg\(\) .*Did you mean 'rtol'"),
        (lambda: fl.gmres(A, b, max_iterations=6), "Did you mean 'maxiter'"),
        (lambda: fl.gmres(A, b, preconditioner=None), "Did you mean 'M'"),
        (lambda: fl.solve(A, b, preconditioner="ilu0"), "Did you mean 'recipe'"),
        (lambda: fl.solve(A, b, M=None), "Did you mean 'recipe'"),
        (lambda: fl.ILUT(fill_factor=2), "Did you mean 'fill'"),
        (lambda: fl.ILUT(droptol=1e-3), r"ILUT\(\) .*Did you mean 'drop_tol'"),
        (lambda: fl.MultilevelILU(dropp_tol=1e-3), r"MultilevelILU\(\) .*Did you mean 'drop_tol'"),
        (lambda: fl.Sequence(rtoll=1e-3), r"Sequence\(\) .*Did you mean 'rtol'"),
        (lambda: fl.TriangularSolver(A, lowr=True), r"TriangularSolver\(\) .*Did you mean 'lower'"),
        (lambda: fl.lsmr(A, b, tol=1e-6), r"lsmr\(\) .*Did you mean 'atol'"),
        (lambda: fl.cgls(A, b, rtol=1e-6), r"cgls\(\) .*Did you mean 'atol'"),
        (lambda: fl.lsqr(A, b, iter_lim=9), r"lsqr\(\) .*Did you mean 'maxiter'"),
        (lambda: fl.spsolve(A, b, permcspec="COLAMD"), r"spsolve\(\) .*Did you mean 'permc_spec'"),
        (lambda: fl.ILU0(nonsense=1), "unexpected keyword argument 'nonsense'.$"),
    ],
)
def test_a_keyword_that_does_not_exist(call, text):
    with pytest.raises(UnknownParameter, match=text) as caught:
        call()
    assert isinstance(caught.value, TypeError) and isinstance(caught.value, fl.ParameterError)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_other_type_errors_stay_what_they_are():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'b'") as caught:
        fl.solve(A)
    assert not isinstance(caught.value, fl.FineluError)
    with pytest.raises(TypeError, match=r"^mine$"):
        fl.solve(A, b, callback=_raises)


def _raises(_):
    raise TypeError("mine")


def test_an_operator_as_the_matrix_of_solve():
    with pytest.raises(fl.MatrixError, match=r"MatrixLinearOperator.*finelu\.gmres\(A, b\), finelu\.cg\(A, b\)"):
        fl.solve(spla.aslinearoperator(A), b)
    assert fl.cg(spla.aslinearoperator(A), b).converged


@pytest.mark.parametrize("call", [fl.solve, fl.cg, lambda A, b: fl.ILU0().factor(A)])
def test_a_rectangular_matrix(call):
    with pytest.raises(
        fl.MatrixError, match=r"\(5, 6\); a square matrix is needed.*finelu\.lstsq\(A, b\), lsmr\(A, b\) and lsqr"
    ):
        call(sp.csr_matrix(np.ones((5, 6))), np.ones(5))


def test_another_library_s_preconditioner():
    lu = spla.splu(A.tocsc())
    for M in (lu, lu.solve):
        assert fl.gmres(A, b, M=M).iterations == 1
    assert fl.bicg(A, b, M=lu).iterations == 1  # applies the adjoint, too
    one, other = fl.gmres(A, b, M=Multigrid()), fl.gmres(A, b)
    assert one.converged and one.iterations == other.iterations  # its cycle is the identity


def test_a_triangle_without_a_diagonal_entry():
    T = sp.csr_matrix((np.ones(2), ([1, 2], [0, 2])), shape=(3, 3))
    with pytest.raises(
        fl.MatrixError, match=r"in row 0 \(2 such rows\), and a triangular solve divides by it.*unit=True"
    ):
        fl.TriangularSolver(T)


OPERATIONS = {
    "A @ x": lambda x: A @ x,
    "dense @ x": lambda x: A.toarray() @ x,
    "x @ A": lambda x: x @ A,
    "norm": lambda x: np.linalg.norm(x),
    "array": lambda x: np.array(x),
    "asarray": lambda x: np.asarray(x, dtype=float),
    "dot": lambda x: np.dot(b, x),
    "index": lambda x: x[2],
    "slice": lambda x: x[:2],
    "abs": abs,
    "minus": lambda x: -x,
    "b - x": lambda x: b - x,
    "x - b": lambda x: x - b,
    "2 * x": lambda x: 2 * x,
    "x / 2": lambda x: x / 2,
    "x > 0": lambda x: x > 0,
    "sin": np.sin,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_solution_used_as_an_array_says_what_to_use(name):
    with pytest.raises(WrongType, match=r"a Solution is no array; use solution\.x") as caught:
        OPERATIONS[name](fl.solve(A, b))
    assert isinstance(caught.value, TypeError)


def test_attributes_of_arrays_are_told():
    solution = fl.solve(A, b)
    for name in ("mean", "shape", "T", "sum"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'; use solution.x.{name}"):
            getattr(solution, name)
    with pytest.raises(AttributeError, match=r"no attribute 'nonsense'$"):
        getattr(solution, "nonsense")  # noqa: B009
    assert not hasattr(solution, "mean")


def test_a_solution_is_true_where_it_has_converged():
    assert fl.solve(A, b)
    assert not fl.cg(A, b, maxiter=1)


def test_a_solution_is_copied_pickled_and_unpacked():
    solution = fl.solve(A, b)
    for other in (copy.copy(solution), copy.deepcopy(solution), pickle.loads(pickle.dumps(solution))):
        np.testing.assert_array_equal(other.x, solution.x)
        assert other.status is solution.status and other.attempts == solution.attempts
    x, info = solution
    assert info == 0 and x is solution.x


def test_counted_nouns():
    assert [counted(k, "row") for k in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]
    assert counted(1, "entry is", "entries are") == "1 entry is" and counted(2, "entry", "entries") == "2 entries"
    one = fl.solve(sp.csr_matrix(np.diag([1.0, 2.0, 0.0])), np.array([1.0, 1.0, 0.0])).explain()
    assert "1 diagonal entry is missing or zero" in one and "1 iteration in " in one
    assert "1 row, 1 entry, " in fl.solve(sp.identity(1), np.ones(1)).explain()


def test_many_right_hand_sides_take_few_lines():
    solution = fl.solve(A, np.random.default_rng(0).standard_normal((64, 20)))
    lines = solution.explain().splitlines()
    assert len(solution.attempts) == 20 and len([line for line in lines if line[0].isdigit()]) == 2
    assert re.search(
        r"^2 to 20\. .* 19 iterations together in .* largest relative residual", solution.explain(verbose=True), re.M
    )


def test_a_sequence_prints_itself():
    sequence = fl.Sequence(A, rtol=1e-6)
    sequence.step(b=b)
    assert repr(sequence) == "Sequence(rtol=1e-06, recipe='auto', method='auto'; 1 step done)"


@pytest.mark.parametrize("status", fl.Status)
def test_what_did_not_converge_is_told_in_sentences_for_every_status(status):
    found = fl.Solution(b, status, 3, 0.5, np.ones(4), method="cg", recipe="IC0()")
    begin = (
        "A x = b did not converge to rtol=1e-08: cg with IC0() ended after 3 iterations with residual norm 5.000e-01. "
    )
    name = status.name.capitalize().replace("_", " ")
    assert str(NotConverged("A x = b", found, 1e-8)) == f"{begin}{name}: {status.value}."
    nothing = fl.Solution(b, status, 0, 0.5, np.ones(1))
    assert ": it ended after 0 iterations with residual norm 5.000e-01. " in str(NotConverged("A x = b", nothing, 1e-8))
