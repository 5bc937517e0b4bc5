"""What parameters of one name do in every recipe that has them: shift, precision, triangular and its sweeps."""

from dataclasses import fields

import numpy as np
import pytest
import scipy.sparse as sp
from checks import assert_close, in_dtype, values
from contract_cases import applied, assert_same_parts, inverse, made, matrices, with_options

from finelu import gallery
from finelu.kernels import kernels_for
from finelu.preconditioners import RECIPES


def having(parameter):
    """A parametrization by the recipes, with other options too, that have a parameter of this name."""
    return pytest.mark.parametrize(
        "name", [name for name, (kind, _) in with_options().items() if parameter in kind.__dataclass_fields__]
    )


def sweeps_of(name):
    """The name of the parameter that counts the sweeps of the triangular solves."""
    names = {f.name for f in fields(with_options()[name][0])}
    return "triangular_sweeps" if "triangular_sweeps" in names else "sweeps"


WITH_SWEEPS = pytest.mark.parametrize(
    "name", [n for n, kind in RECIPES.items() if {"triangular", "sweeps"} <= set(kind.__dataclass_fields__)]
)


@having("shift")
def test_shift_moves_the_diagonal_by_a_share_of_itself(backend, name):
    kind = with_options()[name][0]
    for case in matrices()[:4]:
        if kind.hermitian and case.name.startswith("general"):
            continue
        A = case.A
        moved = sp.csr_matrix(A + sp.diags((0.25 * A.diagonal()).astype(A.dtype)))
        F, G = (made(name, shift=s).factor(backend.move(B)) for s, B in ((0.25, A), (0.0, moved)))
        for got, want in zip(applied(backend, F, np.eye(42)), applied(backend, G, np.eye(42)), strict=True):
            assert_close(got, want, 64, scale=abs(want).max())
        plain = inverse(backend, made(name).factor(backend.move(A)))
        assert abs(inverse(backend, F) - plain).max() > 0.01 * abs(plain).max()


@having("precision")
@pytest.mark.parametrize(("dtype", "single"), [("float64", "float32"), ("complex128", "complex64")])
def test_precision_float32_gives_the_factors_of_the_rounded_matrix(backend, name, dtype, single):
    A, R = in_dtype(gallery.poisson5(6, 5), dtype), backend.move(values((30, 2), dtype))
    F = made(name, precision="float32").factor(backend.move(A))
    G = made(name).factor(backend.move(A.astype(single)))
    assert F.dtype == G.dtype == single
    assert_same_parts(backend, F, G, 0)
    z = backend.fetch(F.solve(R))
    assert z.dtype == dtype  # a float64 Krylov method gets float64 back
    np.testing.assert_array_equal(z, backend.fetch(G.solve(R)))
    if dtype == "complex128" and backend.name == "cpu":  # which nothing else here compiles
        return
    exact = backend.fetch(made(name).factor(backend.move(A)).solve(R))
    rounded = (
        1e-2 if name == "cpr" and backend.name == "cuda" else 1e-4
    )  # the spectrum is estimated in single precision
    assert 0 < abs(z - exact).max() < rounded * abs(exact).max()
    wide = made(name, precision="float64").factor(backend.move(A.astype(single)))
    assert wide.dtype == dtype and wide.update(backend.move(A.astype(single))).dtype == dtype


@WITH_SWEEPS
def test_every_exact_triangular_method_gives_the_same_solution(backend, name):
    A, r = backend.move(gallery.poisson5(7, 6)), backend.move(values((42, 2), "float64"))
    F = made(name).factor(A)
    want = applied(backend, F, backend.fetch(r))
    for method in set(kernels_for(r).triangular.TRIANGULAR_METHODS) - {"jacobi", "isai"}:
        G = made(name, triangular=method).factor(A)
        assert {part["method"] for part in G.report["triangular"].values()} == {method}
        for got, other in zip(applied(backend, G, backend.fetch(r)), want, strict=True):
            assert_close(got, other, 64)


@WITH_SWEEPS
@pytest.mark.parametrize("method", ["jacobi", "isai"])
def test_sweeps_bring_an_iterative_triangular_method_nearer(backend, name, method):
    A = backend.move(gallery.poisson7(6))
    r = backend.move(values(A.shape[0], "float64"))
    exact, errors = backend.fetch(made(name).factor(A).solve(r)), []
    for sweeps in (1, 3, 6, 60):
        F = made(name, triangular=method, **{sweeps_of(name): sweeps}).factor(A)
        assert {part["method"] for part in F.report["triangular"].values()} == {method}
        errors.append(abs(backend.fetch(F.solve(r)) - exact).max())
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[0] > 1e-3 and errors[3] < 1e-9


@pytest.mark.parametrize("name", with_options())
def test_the_report_says_what_ran_where(backend, name):
    F = made(name).factor(backend.move(gallery.poisson5(6, 5)))
    device = "CPU" if backend.name == "cpu" else "GPU"
    assert F.report["factored_on"] in (device, "CPU")
    assert F.report["applied_on"] == (F.report["factored_on"] if name == "sparse_lu" else device)  # where cuDSS is
    assert all(0 <= value < 600 for key, value in F.report.items() if key.endswith("seconds"))
    if "triangular" in F.report:
        kind = with_options()[name][0]
        assert set(F.report["triangular"]) == {"lower", "lower H" if kind.hermitian else "upper"}
