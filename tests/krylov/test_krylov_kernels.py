"""The kernels of the Krylov methods: each form does what the specification does, on steps and on each breakdown."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finelu.kernels import kernels_for, reference
from finelu.kernels.cpu import vectors
from finelu.kernels.monitor import (
    BEST,
    BREAKDOWN,
    BROKEN,
    CLAIM,
    CLAIMED,
    CODE,
    COLUMNS,
    CONVERGED,
    DIVERGED,
    DRIFT,
    GROWTH,
    IMPROVED,
    INDEFINITE,
    INDEFINITE_PRECONDITIONER,
    ITERATIONS,
    NORM,
    NOT_FINITE,
    RUNNING,
    STAGNATED,
    START,
    TAU,
    TOLERANCE,
)

DTYPES = (np.float32, np.float64, np.complex64, np.complex128)
FAMILIES = {
    "cycle": ("begin_cycle", "claim_unless_it_follows", "keep_verified"),
    "vectors": ("dot", "dotu", "norm", "dot_and_norm", "size_of_dot"),
    "recurrences": tuple(
        name for name, f in vars(reference.recurrences).items()
        if inspect.isfunction(f) and re.match("ratio|advance|direction|record|cg_|bicg_|bicgstab_|minres_|sqmr_", name)
    ),
    "arnoldi": (
        "arnoldi_begin", "keep_column", "mgs_step", "cgs2_step", "givens_step", "hessenberg_solve", "combine",
        "update_solution", "take_off",
    ),
}  # fmt: skip
BASIS = 5  # columns of H
COLUMN_STEPS = ("keep_column", "mgs_step", "cgs2_step", "givens_step")  # for the last of them
NAN, INF = float("nan"), float("inf")

fuzz = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
draws = given(n=st.sampled_from([1, 2, 31, 300]), seed=st.integers(0, 2**32 - 1), power=st.integers(-6, 6))


class Values:
    """Arguments for kernels by their names: random ones, and what a test gives."""

    def __init__(self, dtype, n, seed, power=0):
        self.dtype, self.real, self.n = np.dtype(dtype), np.empty(0, dtype).real.dtype, n
        self.rng, self.scale = np.random.default_rng(seed), 2.0**power

    def vector(self, *shape):
        v = self.rng.uniform(-1, 1, shape) * self.scale
        if self.dtype.kind == "c":
            v = v + 1j * self.rng.uniform(-1, 1, shape) * self.scale
        return np.asarray(v.astype(self.dtype), order="F")

    def positive(self, *shape, dtype=None):
        return (self.rng.uniform(0.5, 2, shape) * self.scale).astype(dtype or self.dtype)

    def of(self, name):
        if name == "state":
            return np.array([RUNNING, 3, self.columns, self.rng.integers(0, 2)], np.int32)
        if name == "norms":
            norm = self.positive(1, dtype=self.real)[0]
            return np.array([norm, *(self.scale * np.array([0.01, 0.02, 10, 9])), 1e-9, INF], self.real)
        if name in ("history", "checks"):
            return np.concatenate([self.positive(4, dtype=self.real), np.full(6, NAN, self.real)])
        if name in ("rho", "rho_old", "curvature", "sigma", "square"):
            return self.positive(1)
        if name in ("alpha", "ts"):
            return self.vector(1)
        if name in ("size", "t_norm", "shadow_norm"):
            return self.positive(1, dtype=self.real)
        if name == "lanczos":
            return self.positive(21, dtype=self.real)
        if name == "smoothing":
            return self.positive(5, dtype=self.real)
        if name == "scale":
            return 4.0
        if name == "Q":
            Q = np.linalg.qr(self.vector(self.n, BASIS + 1))[0] if self.n > BASIS else self.vector(self.n, BASIS + 1)
            return np.asarray(Q, self.dtype, order="F")
        if name == "Z":
            return self.vector(self.n, BASIS)
        if name == "H":
            H = self.vector(BASIS + 1, BASIS)
            H[np.arange(BASIS), np.arange(BASIS)] += 4 * self.scale
            return H
        if name == "c":
            return self.positive(BASIS, dtype=self.real)
        if name in ("s", "y", "g") and self.small:
            return self.vector(BASIS + (name == "g" or self.whole))
        if name == "out":
            return np.zeros(1, self.real if self.norm else self.dtype)
        return self.vector(self.n)

    def arguments(self, family, function, given=()):
        """The arguments of a kernel, in their order; given: some of them, or a function that changes a random one."""
        names = list(inspect.signature(getattr(getattr(reference, family), function)).parameters)
        self.small, self.norm = family == "arnoldi", function in ("norm", "size_of_dot")
        self.columns, self.whole = BASIS - (function in COLUMN_STEPS), function == "take_off"  # of Q
        values = {name: self.of(name) for name in names}
        for name, value in dict(given).items():
            if value is None:
                values[name] = None
            elif isinstance(value, dict):
                values[name][list(value)] = list(value.values())
            elif np.ndim(value):
                values[name] = np.asarray(value)
            elif isinstance(values[name], np.ndarray):
                values[name][:] = value
            else:
                values[name] = value
        return values


def called(kernels, family, function, values, move=lambda v: v, fetch=lambda v: v):
    """The arguments after a call."""
    moved = {}
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            value = move(value.copy(order="F"))
        moved[name] = value
    with np.errstate(all="ignore"):
        getattr(getattr(kernels, family), function)(*moved.values())
    return {name: fetch(value) for name, value in moved.items() if isinstance(values[name], np.ndarray)}


def agree(backend, family, function, values, ulps=0.0):
    """Every argument is afterwards what the specification makes of it: integers exactly, numbers to a few roundings of
    the largest, real ones on the CPU without sums bit by bit. Returns the specification's."""
    want = called(reference, family, function, values)
    kernels = kernels_for(backend.xp.empty(0))
    got = called(kernels, family, function, values, backend.move, backend.fetch)
    for name, value in want.items():
        if value.dtype.kind == "i":
            np.testing.assert_array_equal(got[name], value, err_msg=f"{function}: {name}")
            continue
        assert got[name].dtype == value.dtype
        exact = function not in {np.float64: HYPOT, np.float32: WIDER}.get(value.dtype.type, {function})
        if not ulps and backend.name == "cpu" and exact:
            np.testing.assert_array_equal(got[name], value, err_msg=f"{function}: {name}")
            continue
        inputs = [abs(v[np.isfinite(v)]) for v in values.values() if isinstance(v, np.ndarray) and v.size]
        finite = abs(value[np.isfinite(value)])
        largest = max([1.0, *(float(v.max()) for v in (*inputs, finite) if v.size)])
        tolerance = (ulps or 16.0) * float(np.finfo(value.dtype).eps) * largest
        np.testing.assert_allclose(
            got[name], value, rtol=(ulps or 16.0) * float(np.finfo(value.dtype).eps), atol=tolerance,
            err_msg=f"{function}: {name}",
        )  # fmt: skip
    return want


def unchanged(values, after, *but):
    for name, value in after.items():
        if name not in but:
            np.testing.assert_array_equal(value, values[name], err_msg=name)


STEPS = [(family, name) for family in ("recurrences", "arnoldi") for name in FAMILIES[family]]
FREE = ("combine", "hessenberg_solve", "update_solution")  # of what a cycle leaves, whatever ended it
SUMS = {"mgs_step", "cgs2_step", "combine", "take_off", "hessenberg_solve", "cg_step", "bicgstab_step"}
WIDER = {"sqmr_smooth"}  # scalars that Numba computes in double precision
HYPOT = {"sqmr_smooth"}  # a function of the C library: NumPy's and Numba's differ by a rounding


# The forms agree


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("family", "function"), STEPS, ids=lambda v: v)
@fuzz
@draws
def test_a_step_is_that_of_the_specification(backend, family, function, dtype, n, seed, power):
    values = Values(dtype, n, seed, power).arguments(family, function)
    ulps = 40.0 * max(n, 4) if function in SUMS else 64.0 if family == "arnoldi" or "minres" in function else 0.0
    after = agree(backend, family, function, values, ulps)
    assert after["state"][CODE] in (RUNNING, CLAIMED, BROKEN)
    if "best" in values:
        kept = values["x"] if values["state"][IMPROVED] else values["best"]
        np.testing.assert_array_equal(after["best"], kept)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", FAMILIES["vectors"])
@fuzz
@draws
def test_sums_of_vectors_are_those_of_the_specification(backend, function, dtype, n, seed, power):
    agree(backend, "vectors", function, Values(dtype, n, seed, power).arguments("vectors", function), 4.0 * n)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 4, 7])
@pytest.mark.parametrize("n", [1, 300, 2**16 + 5])
def test_moments_are_those_of_the_specification_on_any_number_of_threads(backend, dtype, columns, n, threads):
    random, results = Values(dtype, n, 5), []
    values = {"Q": random.vector(n, columns), "w": random.vector(n), "y": random.vector(columns)}
    agree(backend, "arnoldi", "moments", values, 4.0 * n**0.5 + 64)
    for number in (1, 2):
        threads(number)
        results.append(called(kernels_for(np.empty(0)), "arnoldi", "moments", values)["y"])
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("dtype", [np.float64, np.complex64])
@pytest.mark.parametrize("function", ["bicgstab_half", "bicgstab_step", "bicgstab_direction"])
def test_threads_share_steps_of_bicgstab_and_find_the_same_bits(monkeypatch, threads, function, dtype):
    values, results = Values(dtype, 2**16 + 5, 6).arguments("recurrences", function), []
    for number, shortest in ((1, 2**30), (1, 0), (3, 0)):
        threads(number)
        monkeypatch.setattr(vectors, "SHARED", shortest)
        results.append(called(kernels_for(np.empty(0)), "recurrences", function, values))
    for other in results[1:]:
        for name, value in results[0].items():
            np.testing.assert_array_equal(value, other[name], err_msg=name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("real", [False, True])
def test_a_direction_without_shadow_vectors_and_by_real_numbers(backend, dtype, real):
    values = Values(dtype, 300, 4).arguments("recurrences", "direction", {"z_shadow": None, "p_shadow": None})
    if real:
        values |= {name: values[name].real.copy() for name in ("rho", "rho_old")}
    after = agree(backend, "recurrences", "direction", values)
    np.testing.assert_array_equal(after["p"], values["z"] + values["rho"] / values["rho_old"] * values["p"])


@pytest.mark.parametrize("n", [20, 2**16])
def test_a_direction_after_a_breakdown_divides_by_nothing(backend, n):
    given_ = {"rho_old": 0, "state": {CODE: BROKEN}}
    values = Values(np.complex64, n, 3).arguments("recurrences", "direction", given_)
    unchanged(values, agree(backend, "recurrences", "direction", values))


SHARED_STEPS = ("dot", "dotu", "norm", "dot_and_norm", "cg_step", "direction")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", SHARED_STEPS)
def test_long_vectors_are_shared_and_the_bits_do_not_depend_on_the_threads(function, dtype, threads):
    n, family = (
        kernels_for(np.empty(0)).vectors.SHARED + 5,
        "vectors" if function in FAMILIES["vectors"] else "recurrences",
    )
    values = Values(dtype, n, 3).arguments(family, function)
    expected = called(reference, family, function, values)
    results = []
    for number in (1, 2):
        threads(number)
        results.append(called(kernels_for(np.empty(0)), family, function, values))
    for name, value in expected.items():
        np.testing.assert_array_equal(results[0][name], results[1][name], err_msg=name)
        tolerance = 1e3 * np.finfo(dtype).eps
        np.testing.assert_allclose(results[0][name], value, tolerance, tolerance * n**0.5, err_msg=name)


@pytest.mark.parametrize(
    ("given", "code"), [({"rho": -1.0}, INDEFINITE_PRECONDITIONER), ({"curvature": NAN}, NOT_FINITE)]
)
def test_long_vectors_stay_as_they_are_where_there_is_no_step(given, code):
    values = Values(np.float64, kernels_for(np.empty(0)).vectors.SHARED, 3).arguments("recurrences", "cg_step", given)
    after = called(kernels_for(np.empty(0)), "recurrences", "cg_step", values)
    assert after["state"][CODE] == code
    unchanged(values, after, "state", "rho_old")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("at", [0, 6, -1])
@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_norm_shows_what_is_not_finite(backend, dtype, at, bad):
    x = Values(dtype, 70, 1).vector(70)
    x[at] = bad
    out = agree(backend, "vectors", "norm", {"x": x, "out": np.zeros(1, x.real.dtype)}, 70.0)["out"]
    assert np.isnan(out[0]) if np.isnan(bad) else out[0] == INF


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [None, NAN, INF, -INF])
@pytest.mark.parametrize("at", [0, 77, 299])
def test_what_is_not_finite_is_found(backend, dtype, bad, at):
    """Its first place; and the norm of a vector that holds it is not finite."""
    x = np.linspace(1, 2, 300).astype(dtype)
    if bad is not None:
        x[at] = x[299] = complex(1, bad) if x.dtype.kind == "c" else bad
    for module, move in ((kernels_for(backend.move(x)), backend.move), (reference, lambda a: a)):
        assert module.vectors.first_not_finite(move(x)) == (-1 if bad is None else at)
        norm = move(np.full(1, 7, x.real.dtype))
        module.cycle.unless_finite(move(x), norm)
        assert np.isnan(float(norm[0])) == (bad is not None) and (bad is not None or float(norm[0]) == 7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_difference_may_be_written_over_one_of_its_vectors(backend, dtype):
    b, y = np.linspace(1, 2, 300).astype(dtype), np.linspace(3, -2, 300).astype(dtype)
    on_device = kernels_for(backend.move(b)), lambda a: backend.move(a.copy())
    for module, move in (on_device, (reference, np.copy)):
        for target in range(3):
            vectors = [move(b), move(y), move(np.zeros(300, dtype))]
            module.vectors.difference(vectors[0], vectors[1], vectors[target])
            np.testing.assert_array_equal(backend.fetch(vectors[target]), b - y)


@pytest.mark.parametrize("code", [*range(CLAIMED, DIVERGED + 1)])
@pytest.mark.parametrize(("family", "function"), [step for step in STEPS if step[1] not in FREE], ids=lambda v: v)
def test_after_the_end_nothing_changes(backend, family, function, code):
    values = Values(np.float64, 40, 2).arguments(family, function, {"state": {CODE: code}})
    kernels = kernels_for(backend.xp.empty(0))
    for form in (
        called(reference, family, function, values),
        called(kernels, family, function, values, backend.move, backend.fetch),
    ):
        unchanged(values, form)


# Breakdowns, one by one: (function, what is given, the code that follows)

BREAKDOWNS = [
    ("cg_step", {"rho": 0.0}, INDEFINITE_PRECONDITIONER),
    ("cg_step", {"rho": -1.0}, INDEFINITE_PRECONDITIONER),
    ("cg_step", {"curvature": 0.0}, INDEFINITE),
    ("cg_step", {"curvature": -1.0}, INDEFINITE),
    ("cg_step", {"rho": NAN}, NOT_FINITE),
    ("cg_step", {"curvature": INF}, NOT_FINITE),
    ("ratio", {"rho": 0.0}, BROKEN),
    ("ratio", {"sigma": 0.0}, BROKEN),
    ("ratio", {"rho": 1e-9, "size": 1e9}, BROKEN),
    ("ratio", {"rho": 1e30, "sigma": 1e-30}, None),  # overflows in single precision only
    ("ratio", {"rho": NAN}, NOT_FINITE),
    ("ratio", {"sigma": INF}, NOT_FINITE),
    ("record", {"size": 1e20}, BROKEN),
    ("record", {"size": NAN}, RUNNING),  # ratio sees what is wrong
    ("record", {"size": None, "norms": {DRIFT: 1e-3}}, RUNNING),
    ("record", {"size": None, "norms": {DRIFT: 0.5}}, CLAIMED),
    ("record", {"size": None, "norms": {DRIFT: NAN}}, CLAIMED),
    ("record", {"size": None, "norms": {NORM: 1e9, GROWTH: 1e8}, "history": 1.0}, DIVERGED),
    ("record", {"size": None, "norms": {NORM: 1e7, GROWTH: 1e8}, "history": 1.0}, RUNNING),
    ("record", {"norms": {NORM: 1e-3, CLAIM: 1e-3}}, CLAIMED),
    ("sqmr_smooth", {"size": NAN}, NOT_FINITE),
    ("sqmr_smooth", {"size": INF}, NOT_FINITE),
    ("sqmr_smooth", {"size": 0.0}, RUNNING),
    ("bicgstab_step", {"sigma": 0.0}, BROKEN),
    ("bicgstab_step", {"shadow": 0.0}, BROKEN),
    ("bicgstab_step", {"shadow": 1e-20}, BROKEN),
    ("bicgstab_step", {"ts": 0.0}, BROKEN),
    ("bicgstab_step", {"ts": 0.0, "t_norm": 0.0}, BROKEN),
    ("bicgstab_step", {"sigma": NAN}, BROKEN),
    ("bicgstab_step", {"t_norm": INF}, BROKEN),
    ("minres_rotation", {"square": -1.0}, INDEFINITE_PRECONDITIONER),
    ("minres_rotation", {"square": INF}, NOT_FINITE),
    ("minres_rotation", {"alpha": NAN}, NOT_FINITE),
    ("minres_rotation", {"square": 0.0, "alpha": 0.0, "lanczos": 0.0}, BROKEN),
    ("minres_rotation", {"square": 0.0}, RUNNING),
]
STEPS_THAT_RECORD = ("cg_step", "bicgstab_step")  # the norm of the r that they make
# rho, sigma : the code, at the ends of the precision
for code, rho, sigma in (
    (RUNNING, lambda f: 2 * f.eps, lambda f: 1),
    (BROKEN, lambda f: f.eps, lambda f: 1),  # the terms of rho cancel to rounding
    (BROKEN, lambda f: 1, lambda f: f.tiny / 4),  # alpha overflows
    (RUNNING, lambda f: 1, lambda f: f.max),
):
    given_ = lambda f, rho=rho, sigma=sigma: {"rho": rho(f), "sigma": sigma(f), "size": 1}  # noqa: E731
    BREAKDOWNS.append(("ratio", given_, code))
for code, size in ((RUNNING, 0.4), (BROKEN, 0.6)):  # a residual that outgrows the precision
    given_ = lambda f, s=size: {"norms": {NORM: s / f.eps, START: 1, BEST: 0.5, CLAIM: 0}, "size": s / f.eps}  # noqa: E731
    BREAKDOWNS.append(("record", given_, code))
BREAKDOWNS += [("record", {"norms": {NORM: bad}}, NOT_FINITE) for bad in (NAN, INF)]
BREAKDOWNS += [(name, {"r": NAN}, NOT_FINITE) for name in STEPS_THAT_RECORD]
BREAKDOWNS += [(name, {"norms": {CLAIM: 1e3}}, CLAIMED) for name in STEPS_THAT_RECORD]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("function", "given_", "code"), BREAKDOWNS, ids=lambda v: "ends" if callable(v) else str(v))
def test_a_breakdown_is_named(backend, dtype, function, given_, code):
    given_ = given_(np.finfo(dtype)) if callable(given_) else given_
    values = Values(dtype, 20, 3).arguments("recurrences", function, given_)
    after = agree(backend, "recurrences", function, values, 64.0)
    if code is not None:
        assert after["state"][CODE] == code
    if after["state"][CODE] == NOT_FINITE and "history" in after:  # it is no iteration
        assert after["state"][ITERATIONS] == values["state"][ITERATIONS]
        np.testing.assert_array_equal(after["history"], values["history"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("function", "given_"),
    [
        ("cg_step", {"rho": 0.0}),
        ("cg_step", {"rho": -1.0}),
        ("cg_step", {"rho": NAN}),
        ("cg_step", {"curvature": 0.0}),
        ("cg_step", {"curvature": -1.0}),
        ("cg_step", {"curvature": NAN}),
        ("bicgstab_half", {"sigma": 0.0}),
        ("bicgstab_step", {"sigma": 0.0}),
    ],
    ids=str,
)
def test_no_step_is_taken_where_there_is_nothing_to_divide_by(backend, dtype, function, given_):
    values = Values(dtype, 20, 4).arguments("recurrences", function, given_)
    unchanged(values, agree(backend, "recurrences", function, values), "state", "rho_old")


@pytest.mark.parametrize("norm", [0.5, 2.0])
@pytest.mark.parametrize("size", [None, 1.0])
def test_a_better_iterate_is_marked_to_be_kept(backend, size, norm):
    given_ = {"norms": {NORM: norm, BEST: 1.0}, "state": {IMPROVED: 1}, "size": size}
    values = Values(np.float64, 9, 5).arguments("recurrences", "record", given_)
    after = agree(backend, "recurrences", "record", values)
    assert after["state"][IMPROVED] == (norm < 1) and after["norms"][BEST] == min(norm, 1)
    assert after["state"][ITERATIONS] == 4 and after["history"][4] == norm


@pytest.mark.parametrize("best", [1e-9, 1e9])
@pytest.mark.parametrize("function", STEPS_THAT_RECORD)
def test_a_step_marks_a_better_iterate_to_be_kept(backend, function, best):
    given_ = {"norms": {BEST: best}, "state": {IMPROVED: 1}}
    values = Values(np.float64, 9, 5).arguments("recurrences", function, given_)
    after = agree(backend, "recurrences", function, values, 64.0)
    norm = np.linalg.norm(after["r"])
    assert after["norms"][NORM] == pytest.approx(norm) == after["history"][4]
    assert after["state"][IMPROVED] == (best > 1) and after["norms"][BEST] == min(after["norms"][NORM], best)
    assert after["state"][ITERATIONS] == 4


def test_an_iterate_that_its_rounding_may_have_made_is_not_kept(backend):
    given_ = {"norms": {NORM: 0.5, BEST: 1.0, DRIFT: 1e-3}, "size": None}
    values = Values(np.float64, 9, 6).arguments("recurrences", "record", given_)
    after = agree(backend, "recurrences", "record", values)
    assert not after["state"][IMPROVED] and after["norms"][BEST] == 1.0


@pytest.mark.parametrize(
    ("before", "norm", "iterations", "code"),
    [
        (RUNNING, 1.0, 0, RUNNING),
        (RUNNING, 1.0, 3, RUNNING),
        (RUNNING, 0.01, 3, CONVERGED),
        (CLAIMED, 0.01, 3, CONVERGED),
        (CLAIMED, 4.9, 3, RUNNING),
        (CLAIMED, 5.1, 3, STAGNATED),
        (BROKEN, 4.9, 3, RUNNING),
        (BROKEN, 5.1, 3, BREAKDOWN),
        (RUNNING, NAN, 3, NOT_FINITE),
        (CLAIMED, INF, 0, NOT_FINITE),
        *((code, 0.001, 3, code) for code in range(CONVERGED, DIVERGED + 1)),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_where_a_cycle_begins_the_true_residual_decides(backend, dtype, before, norm, iterations, code):
    given_ = {
        "state": [before, iterations, 2, 1],
        "norms": np.array([norm, 0.01, 0.02, 10.0, 9.0], dtype),
        "checks": np.full(10, NAN, dtype),
    }
    given_["state"] = np.array(given_["state"], np.int32)
    values = Values(dtype, 7, 7).arguments("cycle", "begin_cycle", given_)
    after = agree(backend, "cycle", "begin_cycle", values)
    assert after["state"][CODE] == code and after["state"][COLUMNS] == 0
    judged = before <= BROKEN and np.isfinite(norm)
    assert after["state"][IMPROVED] == (judged and norm < 10)
    if judged:
        assert after["norms"][START] == after["norms"][BEST] == dtype(norm) == after["checks"][iterations]
        assert (after["history"][0] == dtype(norm)) == (iterations == 0)
    else:
        unchanged(values, after, "state")


@pytest.mark.parametrize(
    ("before", "claimed", "norm", "code"),
    [
        (RUNNING, 1.0, 1.9, RUNNING),
        (RUNNING, 1.0, 9.9, RUNNING),  # less than that of an earlier restart
        (RUNNING, 6.0, 11.0, RUNNING),
        (RUNNING, 4.0, 10.0, CLAIMED),
        (RUNNING, 4.0, NAN, RUNNING),  # which `begin_cycle` finds
        (BROKEN, 4.0, 10.0, BROKEN),
        (CONVERGED, 4.0, 10.0, CONVERGED),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_restart_from_which_the_recurrence_has_drifted_is_a_claim(backend, dtype, before, claimed, norm, code):
    given_ = {
        "state": np.array([before, 3, 2, 0], np.int32),
        "norms": np.array([claimed, 0.01, 0.02, 10.0, 9.0, 0.0, np.inf], dtype),
        "norm": np.array([norm], dtype),
    }
    after = agree(
        backend,
        "cycle",
        "claim_unless_it_follows",
        Values(dtype, 7, 7).arguments("cycle", "claim_unless_it_follows", given_),
    )
    assert after["state"][CODE] == code
    np.testing.assert_array_equal(after["norms"][NORM], dtype(norm))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("improved", [0, 1])
def test_the_iterate_of_the_smallest_true_residual_is_kept(backend, dtype, improved):
    values = Values(dtype, 50, 8).arguments("cycle", "keep_verified", {"state": {IMPROVED: improved}})
    after = agree(backend, "cycle", "keep_verified", values)
    np.testing.assert_array_equal(after["verified"], values["x"] if improved else values["verified"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ({}, RUNNING),
        ({(BASIS, BASIS - 1): NAN}, NOT_FINITE),
        ({(0, BASIS - 1): INF}, NOT_FINITE),
        ("a column of zeros", BROKEN),
        ("a column that the rotations before take to zero", BROKEN),
    ],
    ids=str,
)
def test_a_column_of_H_without_a_rotation_is_not_counted(backend, dtype, entries, code):
    values = Values(dtype, 9, 9).arguments("arnoldi", "givens_step")
    H = values["H"]
    if entries == "a column of zeros":
        H[:, BASIS - 1] = 0
    elif isinstance(entries, str):
        values["c"][:], values["s"][:] = 1, 0
        H[BASIS - 1 :, BASIS - 1] = 0
    else:
        for place, value in entries.items():
            H[place] = value
    after = agree(backend, "arnoldi", "givens_step", values, 64.0)
    assert after["state"][CODE] == code
    assert after["state"][COLUMNS] == BASIS - (code != RUNNING)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", range(BASIS + 1))
@pytest.mark.parametrize("function", FREE)
def test_columns_that_are_not_ready_are_not_read(backend, dtype, columns, function):
    values = Values(dtype, 40, 10).arguments("arnoldi", function, {"state": {COLUMNS: columns}})
    if function == "combine":
        values["Q"][:, columns:] = NAN
    elif function == "hessenberg_solve":
        values["H"][:, columns:], values["g"][columns:] = NAN, NAN
    if function != "update_solution" and columns == BASIS:
        values["state"][CODE] = CONVERGED  # the last columns are made use of after the end
    after = agree(backend, "arnoldi", function, values, 400.0)
    if function != "hessenberg_solve":
        assert np.isfinite(after["x" if function == "update_solution" else "u"]).all()
    else:
        np.testing.assert_array_equal(after["y"][columns:], 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", ["mgs_step", "cgs2_step"])
def test_what_is_only_rounding_is_no_vector_of_the_basis(backend, dtype, function):
    values = Values(dtype, 60, 11).arguments("arnoldi", function)
    Q = values["Q"]
    Q[:, :BASIS] = np.eye(60, BASIS)
    values["w"][:] = Q[:, 1] - Q[:, 3]
    after = agree(backend, "arnoldi", function, values, 64.0)
    assert after["H"][BASIS, BASIS - 1] == 0 and not after["Q"][:, BASIS].any() and not after["v"].any()


def test_smoothing_follows_its_formulas():
    """By definition: x is the mean of bicg's iterates, weighted by the inverse squares of their residual norms."""
    state, smoothing = np.zeros(4, np.int32), np.zeros(5)
    sizes = [2.0, 1.0, 3.0, 0.5]
    smoothing[TAU] = sizes[0]
    weight = 1 / sizes[0] ** 2
    for size in sizes[1:]:
        reference.recurrences.sqmr_smooth(state, smoothing, np.array([size]))
        weight += 1 / size**2
        assert smoothing[TAU] == pytest.approx(weight**-0.5)


@pytest.mark.parametrize("dtype", DTYPES)
@fuzz
@draws
def test_a_product_is_that_of_the_specification(backend, dtype, n, seed, power):
    values = Values(dtype, n, seed, power)
    A = sp.random(n, n, min(1.0, 5 / n), format="csr", random_state=seed % 2**31)
    A = sp.csr_matrix((values.vector(A.nnz), A.indices, A.indptr), A.shape)
    A.sort_indices()
    x = values.vector(n)
    want, kernels = reference.products.Product(A)(x), kernels_for(backend.xp.empty(0))
    product = kernels.products.Product(backend.move(A))
    out, total, y = backend.move(values.vector(n)), backend.move(values.vector(1)), values.vector(n)
    assert product(backend.move(x), out=out) is out
    got = [product(backend.move(x)), out, product.with_dot(backend.move(x), backend.move(y), total)]
    size = 64 * np.finfo(dtype).eps * max(float(abs(want).max()), values.scale**2)
    exact = backend.name == "cpu" and A.dtype.kind == "f"
    for result in map(backend.fetch, got):
        assert result.dtype == want.dtype
        np.testing.assert_allclose(result, want, rtol=0, atol=0 if exact else size)
    terms = float(abs(y) @ abs(want)) + n * values.scale**3
    assert abs(backend.fetch(total)[0] - np.vdot(y, want)) <= 8 * n * np.finfo(dtype).eps * terms


def test_every_kernel_has_the_arguments_of_its_specification():
    cpu = kernels_for(np.empty(0))
    sources = Path(inspect.getfile(reference)).parents[1] / "cuda"
    for family, functions in FAMILIES.items():
        text = (sources / f"{family}.py").read_text()
        for function in functions:
            names = list(inspect.signature(getattr(getattr(reference, family), function)).parameters)
            form = getattr(getattr(cpu, family), function)
            assert list(inspect.signature(getattr(form, "py_func", form)).parameters) == names
            assert f"def {function}({', '.join(names)}):" in text
    assert len(FAMILIES["recurrences"]) == 14 and len({*FAMILIES["recurrences"]} & {*dir(cpu.recurrences)}) == 14


def test_the_codes_of_the_monitor_are_apart():
    codes = (RUNNING, CLAIMED, BROKEN, CONVERGED, STAGNATED, BREAKDOWN, INDEFINITE, INDEFINITE_PRECONDITIONER)
    assert [*codes, NOT_FINITE, DIVERGED] == list(range(10))
    assert tuple(range(7)) == (NORM, TOLERANCE, CLAIM, START, BEST, DRIFT, GROWTH)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("before", [NAN, INF, 3.0])
@pytest.mark.parametrize("n", [5, 3000])
def test_the_size_of_a_product_does_not_depend_on_what_was_there(backend, dtype, before, n):
    x = np.ones(n, dtype)
    for module, move in ((kernels_for(backend.move(x)), backend.move), (reference, lambda v: v)):
        out = move(np.full(1, before, x.real.dtype))
        module.vectors.size_of_dot(move(x), move(x), out)
        assert float(out[0]) == n
