"""BiCGStab(l) and IDR(s): the kernels are those of the specification, and what the methods promise."""

import inspect

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from krylov_cases import residual, system

import finelu as fl
from finelu.auto.attempt import joined
from finelu.kernels import kernels_for, reference
from finelu.kernels.monitor import BEST, BROKEN, CLAIM, CLAIMED, CODE, IMPROVED, ITERATIONS, NORM, RUNNING
from finelu.krylov.loop import Loop
from finelu.krylov.shadow import Shadows
from finelu.krylov.system import System
from finelu.result import Status

DTYPES = (np.float32, np.float64, np.complex64, np.complex128)
L, S = 3, 4  # of the kernels' arguments
BICGSTABL = ("direction", "bicg_step", "gram", "polynomial", "minimize")
IDRS = ("begin", "residual_part", "direction", "orthogonality", "step")
COLUMNS_OF = {"R": L, "U": L + 1, "V": L - 1, "W": L, "P": S, "G": S}

fuzz = settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def arguments(family, function, dtype, n, seed, step=0):
    """Random arguments of a kernel by their names; step : j of BiCGStab(l), k of IDR(s)."""
    rng, real = np.random.default_rng(seed), np.empty(0, dtype).real.dtype
    wide = np.complex128 if np.dtype(dtype).kind == "c" else np.float64

    def numbers(*shape):
        v = rng.uniform(-1, 1, shape) + (1j * rng.uniform(-1, 1, shape) if np.dtype(dtype).kind == "c" else 0)
        return np.asarray(v.astype(dtype), order="F")

    count = L if family == "bicgstabl" else S
    made = {
        "state": np.array([RUNNING, 3, step if family == "idrs" else 0, seed % 2], np.int32),
        "norms": np.array([1, 1e-9, 1e-9, 10, 9, 0, np.inf], real),
        "history": np.full(8, np.nan, real),
        "size": np.full(1, 0.25, real),
        "shadow_norm": np.ones(1, real),
        "j": step,
        **{name: numbers(count) + 2 for name in ("rho", "sigma", "gamma")},
        "omega": numbers(1) + 2,
        "f": numbers(S),
        "c": numbers(S),
        "Q": np.asarray(np.tril(numbers(S, S)) + 3 * np.eye(S, dtype=dtype), dtype, order="F"),
    }
    if family == "bicgstabl":
        columns = numbers(n, L + 1).astype(wide)
        made["G"] = np.asarray(columns.conj().T @ columns, order="F")
    names = inspect.signature(getattr(getattr(reference, family), function)).parameters
    vectors = {name: (n, COLUMNS_OF[name]) if name in COLUMNS_OF else (n,) for name in names}
    if family == "idrs":
        vectors["U"] = (n, S)
    return {name: made[name] if name in made else numbers(*vectors[name]) for name in names}


def called(kernels, family, function, values, move=lambda v: v, fetch=lambda v: v):
    moved = {k: move(v.copy(order="F")) if isinstance(v, np.ndarray) else v for k, v in values.items()}
    with np.errstate(all="ignore"):
        getattr(getattr(kernels, family), function)(*moved.values())
    return {k: fetch(v) for k, v in moved.items() if isinstance(v, np.ndarray) or hasattr(v, "get")}


def agree(backend, family, function, values, factor=200.0):
    """Each argument is afterwards what the specification makes of it. Returns the specification's."""
    want = called(reference, family, function, values)
    got = called(kernels_for(backend.xp.empty(0)), family, function, values, backend.move, backend.fetch)
    for name, value in want.items():
        if value.dtype.kind == "i":
            np.testing.assert_array_equal(got[name], value, err_msg=name)
            continue
        eps = np.finfo(values.get("x", values.get("omega", values.get("f", value))).dtype).eps
        largest = np.max(abs(value[np.isfinite(value)]), initial=1.0)
        np.testing.assert_allclose(got[name], value, rtol=factor * eps, atol=factor * eps * largest, err_msg=name)
    return want


STEPS = [("bicgstabl", f, j) for f in BICGSTABL for j in range(L)] + [
    ("idrs", f, k) for f in IDRS for k in range(S + 1)
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("family", "function", "step"), STEPS)
@fuzz
@given(n=st.sampled_from([L + 2, 31, 1500]), seed=st.integers(0, 2**32 - 1), alone=st.booleans())
def test_a_step_is_that_of_the_specification(backend, family, function, step, dtype, n, seed, alone):
    values = arguments(family, function, dtype, n, seed, step)
    if alone:  # without a preconditioner
        values |= {name: None for name in ("V", "W") if name in values}
    after = agree(backend, family, function, values, 40.0 * n**0.5 * 64)
    if function in ("bicg_step", "step") and step == 0:
        kept = values["x"] if values["state"][IMPROVED] else values["best"]
        np.testing.assert_array_equal(after["best"], kept)


@pytest.mark.parametrize("code", [CLAIMED, BROKEN])
@pytest.mark.parametrize(("family", "function", "step"), STEPS)
def test_after_the_end_nothing_changes(backend, family, function, step, code):
    values = arguments(family, function, np.float64, 40, 2, step)
    values["state"][CODE] = code
    for name, value in agree(backend, family, function, values).items():
        np.testing.assert_array_equal(value, values[name], err_msg=name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("at", range(L))
def test_a_step_without_a_divisor_ends_the_cycle_with_the_steps_before_it(backend, dtype, at):
    values = arguments("bicgstabl", "bicg_step", dtype, 40, 3, L - 1)
    values["sigma"][at] = 0
    after = agree(backend, "bicgstabl", "bicg_step", values)
    for name in ("x", "R", "U", "V", "W"):
        np.testing.assert_array_equal(after[name], values[name])
    values = arguments("bicgstabl", "minimize", dtype, 40, 3)
    values["sigma"][at] = 0
    after = agree(backend, "bicgstabl", "minimize", values)
    assert after["state"][CODE] == BROKEN and after["state"][ITERATIONS] == 3 + (at > 0)
    np.testing.assert_array_equal(after["x"], values["x"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_direction_that_is_lost_ends_the_cycle(backend, dtype):
    for changed in ({"omega": 0}, {"shadow": 1e-20}):
        values = arguments("bicgstabl", "minimize", dtype, 40, 4)
        for name, value in changed.items():
            values[name][:] = value
        assert agree(backend, "bicgstabl", "minimize", values)["state"][CODE] == BROKEN
    values = arguments("idrs", "orthogonality", dtype, 40, 4, 1)
    values["P"][:, 1] = 0
    values["Q"][1, 0] = 0
    assert agree(backend, "idrs", "orthogonality", values)["state"][CODE] == BROKEN
    values = arguments("idrs", "orthogonality", dtype, 40, 4, S)
    values["w"][:20], values["r"][20:] = 0, 0
    assert agree(backend, "idrs", "orthogonality", values)["state"][CODE] == BROKEN


@pytest.mark.parametrize(("family", "function"), [("bicgstabl", "minimize"), ("idrs", "step")])
def test_a_residual_whose_rounding_is_as_large_as_the_best_one_ends_the_cycle(backend, family, function):
    for size, code in ((0.4, RUNNING), (2.0, BROKEN)):
        values = arguments(family, function, np.float64, 20, 5, 1)
        values["norms"][BEST], values["norms"][CLAIM] = 1e-3, 0
        values["size"][0] = size * 1e-3 / np.finfo(np.float64).eps
        after = agree(backend, family, function, values)
        assert after["norms"][NORM] > 1e-3 and after["state"][CODE] == code


def test_the_polynomial_is_the_minimal_one_where_the_cosine_is_large(backend):
    """By definition: r_0 without its parts along r_1 to r_l, those that depend on others left out."""
    rng = np.random.default_rng(6)
    for dependent in (False, True):
        columns = rng.standard_normal((50, L + 1))
        columns[:, 0] = columns[:, 1:] @ [1.0, 2.0, 3.0] + 0.1 * columns[:, 0]
        if dependent:
            columns[:, 2] = 3 * columns[:, 1]
        values = arguments("bicgstabl", "polynomial", np.float64, 50, 6)
        values["G"] = np.asarray(columns.T @ columns, order="F")
        after = agree(backend, "bicgstabl", "polynomial", values, 1e4)
        least = np.linalg.lstsq(columns[:, 1:], columns[:, 0], rcond=None)[0]
        rest = columns[:, 0] - columns[:, 1:] @ after["gamma"]
        want = columns[:, 0] - columns[:, 1:] @ least
        np.testing.assert_allclose(rest, want, atol=1e-9)
        assert after["omega"][0] == after["gamma"][-1] and (after["gamma"][1] == 0) == dependent


@pytest.mark.parametrize("cosine", [0.01, 0.5, 0.9])
def test_a_factor_that_stands_for_a_small_cosine_is_made_larger(backend, cosine):
    values = arguments("bicgstabl", "polynomial", np.float64, 9, 7)
    values |= {"G": np.array([[4, 6 * cosine], [6 * cosine, 9]], order="F")}
    values |= {"sigma": np.ones(1), "gamma": np.zeros(1)}
    after = agree(backend, "bicgstabl", "polynomial", values)
    assert after["omega"][0] == pytest.approx(max(cosine, 0.7) * 2 / 3)
    values = arguments("idrs", "orthogonality", np.float64, 2, 7, S)
    values["r"][:], values["w"][:] = (2, 0), (3 * cosine, 3 * (1 - cosine**2) ** 0.5)
    after = agree(backend, "idrs", "orthogonality", values)
    assert after["omega"][0] == pytest.approx(max(cosine, 0.7) * 2 / 3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_shadow_space_is_the_same_on_every_device_and_in_every_run(backend, dtype):
    spaces = []
    for seed, first, n in ((1, 0, 70), (1, 0, 70), (2, 0, 70), (1, 30, 40)):
        want, got = np.zeros((n, S), dtype, order="F"), backend.move(np.zeros((n, S), dtype, order="F"))
        reference.idrs.draw(seed, first, want)
        kernels_for(got).idrs.draw(seed, first, got)
        np.testing.assert_array_equal(backend.fetch(got), want)
        spaces.append(want)
    np.testing.assert_array_equal(spaces[0], spaces[1])
    np.testing.assert_array_equal(spaces[0][30:], spaces[3])  # rows do not depend on where a part begins
    assert abs(np.vdot(spaces[0], spaces[2])) < 0.5 * np.vdot(spaces[0], spaces[0]).real
    assert abs(spaces[0].real).max() < 1 and abs(spaces[0].mean()) < 0.15
    assert np.iscomplexobj(want) == bool(abs(spaces[0].imag).max() > 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_shadow_vectors_are_orthonormal(backend, dtype):
    A, b = (backend.move(v) for v in system("general", dtype))
    loop = Loop(fl.idrs.method, System.checked(A, b), rtol=1e-3, atol=0.0, maxiter=9, callback=None, watch=None)
    P = backend.fetch(Shadows(loop).draw(backend.xp.zeros((b.size, 6), dtype, order="F")))
    np.testing.assert_allclose(P.conj().T @ P, np.eye(6), atol=40 * np.finfo(dtype).eps)


# The methods


def skew_dominant(n=400, part=0.1):
    return (part * sp.eye(n) + sp.diags([-1.0, 0.0, 1.0], [-1, 0, 1], shape=(n, n))).tocsr()


@pytest.mark.parametrize("steps", [2, 4, 8])
@pytest.mark.parametrize("part", [0.1, 0.0])
def test_bicgstabl_solves_where_one_factor_cannot_stand_for_imaginary_eigenvalues(backend, part, steps):
    """bicgstab starts again and again, and ends at the first step for the skew part alone."""
    A = skew_dominant(part=part)
    for b in (np.ones(400), np.random.default_rng(0).standard_normal(400)):
        found = fl.bicgstabl(backend.move(A), backend.move(b), rtol=1e-8, l=steps)
        assert found.converged and residual(A, b, backend.fetch(found.x)) <= 1.001e-8 * np.linalg.norm(b)
        assert found.breakdowns == (part == 0)  # with the residual for its shadow the first divisor is 0
        assert found.iterations * steps <= (300 if part else 700)
        other = fl.bicgstab(backend.move(A), backend.move(b), rtol=1e-8)
        assert other.status is Status.BREAKDOWN or other.iterations > 2 * found.iterations * steps


def test_idrs_solves_a_skew_dominant_system_with_a_complex_shadow_space(backend):
    """A real omega is no help with imaginary eigenvalues: what happens to a real system is reported."""
    A = skew_dominant()
    for b in (np.ones(400), np.random.default_rng(0).standard_normal(400)):
        found = fl.idrs(backend.move(A), backend.move(b.astype(complex)), rtol=1e-8)
        assert found.converged and found.iterations <= 600 and found.breakdowns == 0
        real = fl.idrs(backend.move(A), backend.move(b), rtol=1e-8, maxiter=4000)
        assert real.breakdowns > 0 and "breakdowns, " in repr(real)
        size = residual(A, b, backend.fetch(real.x))
        assert size == pytest.approx(real.residual_norm, rel=1e-6)
        assert real.converged == (size <= 1.001e-8 * np.linalg.norm(b))


@pytest.mark.parametrize("method", ["bicgstabl", "idrs"])
def test_solve_and_a_sequence_tell_of_the_breakdowns_of_all_attempts(method):
    A, b = skew_dominant(120, 0.0), np.random.default_rng(0).standard_normal(120)
    solution = fl.solve(A, b, method=method, recipe=None)
    methods = {"bicgstabl": fl.bicgstabl, "idrs": fl.idrs}
    own = methods[method](A, b, rtol=solution.tolerance / np.linalg.norm(b), maxiter=solution.iterations)
    assert solution.breakdowns >= own.breakdowns > 0
    first, second = solution, fl.solve(A, b, x0=solution.x + 1, method=method, recipe=None)
    assert joined(first, second).breakdowns == first.breakdowns + second.breakdowns
    sequence = fl.Sequence(method=method, recipe=None)
    steps = [sequence.step(A, c) for c in (b, b[::-1].copy())]
    assert all(step.breakdowns > 0 for step in steps)


@pytest.mark.parametrize("s", [1, 2, 4, 7])
def test_idrs_ends_after_n_and_n_by_s_products(s):
    """By limit: the dimension of the space of residuals falls by s with every s + 1 products."""
    n = 28
    A = np.diag(np.linspace(1, 2, n)) + np.triu(np.random.default_rng(1).uniform(-0.2, 0.2, (n, n)), 1)
    found = fl.idrs(A, np.ones(n), rtol=1e-9, s=s)
    assert found.converged and found.iterations <= n + n // s + 1


def test_a_larger_l_or_s_takes_fewer_products():
    A = fl.gallery.problem("convection_diffusion:20")
    b = np.random.default_rng(2).standard_normal(A.shape[0])
    products = {s: fl.idrs(A, b, rtol=1e-9, s=s).iterations for s in (1, 8)}
    assert products[8] < 0.9 * products[1]
    products = {steps: 2 * steps * fl.bicgstabl(A, b, rtol=1e-9, l=steps).iterations for steps in (1, 4)}
    assert products[4] != products[1]
    full = fl.gmres(A, b, rtol=1e-9, restart=500).iterations
    assert full <= min(fl.idrs(A, b, rtol=1e-9, s=s).iterations for s in (1, 4, 8))


def test_bicgstabl_with_one_step_is_bicgstab_where_no_factor_is_made_larger():
    A, b = system("general")
    F = fl.ILU0().factor(A)
    one, other = fl.bicgstabl(A, b, M=F, rtol=1e-9, l=1), fl.bicgstab(A, b, M=F, rtol=1e-9)
    np.testing.assert_allclose(one.recurrence[:4], other.recurrence[:4], rtol=1e-9)
    assert abs(one.iterations - other.iterations) <= 1


@pytest.mark.parametrize("method", [fl.bicgstabl, fl.idrs])
def test_a_shadow_space_that_breaks_down_is_exchanged(method, monkeypatch):
    """The first one is orthogonal to all that A makes of r; the next one is drawn anew."""
    n = 40
    A = sp.block_diag([np.diag(np.linspace(1, 2, n // 2)), np.diag(np.linspace(1, 3, n // 2))]).tocsr()
    b = np.r_[np.ones(n // 2), np.zeros(n // 2)]
    drawn, draw = [], Shadows.draw

    def useless_at_first(self, S):
        drawn.append(self.loop.cycles)
        if len(drawn) > 1:
            return draw(self, S)
        S.fill(0)
        S[n - 1 - np.arange(S.shape[1]), np.arange(S.shape[1])] = 1
        return S

    if method is fl.idrs:
        monkeypatch.setattr(Shadows, "draw", useless_at_first)
    else:
        A = skew_dominant(n, 0.0)
    found = method(A, b, rtol=1e-9)
    assert found.converged and found.breakdowns == 1 and "1 breakdown, " in repr(found)
    assert residual(A, b, found.x) <= 1.001e-9 * np.linalg.norm(b)


@pytest.mark.parametrize("method", [fl.bicgstabl, fl.idrs])
def test_a_singular_system_without_a_solution_is_not_said_to_converge(method):
    A = sp.diags(np.r_[0.0, np.linspace(1, 2, 29)]).tocsr()
    found = method(A, np.ones(30), rtol=1e-9)
    assert not found.converged and found.residual_norm >= 1
    assert np.isfinite(found.x).all() and found.residual_norm <= np.linalg.norm(np.ones(30))


@pytest.mark.parametrize(
    ("method", "options", "match"),
    [
        (fl.bicgstabl, {"l": 0}, "l=0; an integer from 1 to 8"),
        (fl.bicgstabl, {"l": 9}, "l=9; an integer from 1 to 8"),
        (fl.bicgstabl, {"l": 2.5}, "l=2.5"),
        (fl.idrs, {"s": 0}, "s=0; an integer from 1 to 32"),
        (fl.idrs, {"s": "4"}, "s='4'"),
        (fl.idrs, {"s": 33}, "s=33"),
    ],
)
def test_bad_parameters_are_named(method, options, match):
    with pytest.raises(fl.ParameterError, match=match):
        method(*system("general"), **options)


def test_more_shadow_vectors_than_rows_are_as_many_as_rows():
    found = fl.idrs(np.array([[2.0, 1.0], [0.0, 3.0]]), np.ones(2), rtol=1e-12, s=8)
    np.testing.assert_allclose(found.x, np.linalg.solve([[2.0, 1.0], [0.0, 3.0]], np.ones(2)), rtol=1e-12)
    assert found.iterations <= 3


@pytest.mark.parametrize("method", [fl.bicgstabl, fl.idrs])
def test_products_are_those_of_the_iterations_and_one_more(method):
    """For the true residual at the end; the first one also shows how large A is."""
    A, b = system("general")
    count = [0]

    def product(v):
        count[0] += 1
        return A @ v

    op = spla.LinearOperator(A.shape, matvec=product, dtype=A.dtype)
    found = method(op, b, rtol=1e-9)
    assert found.converged and count[0] == found.iterations * method.method.products + 1


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("when", [2, 4])
@pytest.mark.parametrize("method", [fl.bicgstabl, fl.idrs])
def test_inf_in_a_product_is_told_and_not_taken_for_a_breakdown(method, when, bad):
    """A is diagonal, so that one element of A M^-1 v alone is Inf, and its products with shadow vectors are, too."""
    A, b, calls = sp.diags(np.linspace(1, 9, 40)).tocsr(), np.random.default_rng(0).standard_normal(40), []

    def M(r):
        calls.append(r)
        return np.where(np.arange(40) == 3, bad, r) if len(calls) == when else r.copy()

    found = method(A, b, M=M, rtol=1e-12)
    assert found.status is Status.NOT_FINITE and found.breakdowns == 0 and np.isfinite(found.x).all()
