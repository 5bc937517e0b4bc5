"""cg's step of x taken in the pass that turns the direction, and dots taken in the pass of a product."""

import numpy as np
import pytest
from checks import DTYPES, assert_close, values

import finelu as fl
from finelu import gallery
from finelu.kernels import cpu, reference
from finelu.kernels.monitor import CLAIMED, CODE, IMPROVED, INDEFINITE, RUNNING
from finelu.matrix import as_csr

FORMS = pytest.mark.parametrize("kernels", [reference, cpu], ids=["reference", "cpu"])
LONG = cpu.vectors.SHARED + 5


def monitored(real, improved):
    state = np.array([RUNNING, 3, 0, improved], np.int32)
    norms = np.array([1.0, 1e-9, 1e-9, 10, 9, 0, np.inf], real)
    return state, norms, np.concatenate([np.ones(4), np.zeros(4)]).astype(real)


@FORMS
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("improved", [0, 1])
@pytest.mark.parametrize("larger", [False, True])
def test_both_passes_are_one_step_of_cg(kernels, dtype, improved, larger):
    """x, r and the monitor have the bits of `cg_step`; x is kept where it is the best and the next is no better."""
    n, K = LONG, 300
    p, q, x, r, z, coarse = (values(n, dtype, seed) for seed in range(6))
    r = r * 1000 if larger else r / 1000
    parts, real = np.arange(n, dtype=np.int32) * K // n, x.real.dtype
    rho, curvature, new = np.full(1, 0.75, dtype), np.full(1, 0.5, dtype), np.full(1, 0.25, dtype)

    state, norms, history = monitored(real, improved)
    want_x, want_r, want_old = x.copy(), r.copy(), np.zeros(1, dtype)
    kernels.recurrences.cg_step(
        state, norms, history, rho, curvature, want_old, p, q if larger else q / 1000, want_x, x.copy(), want_r
    )
    got = monitored(real, improved)
    alpha, kept, old, best = np.zeros(1, real), np.zeros(1, real), np.zeros(1, dtype), np.zeros(n, dtype)
    kernels.recurrences.residual_step(*got, rho, curvature, old, q if larger else q / 1000, r, alpha, kept)
    for mine, theirs in zip((*got, r, old), (state, norms, history, want_r, want_old), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert state[IMPROVED] == (not larger) and kept[0] == (improved and larger)
    before, moved = x.copy(), p.copy()
    kernels.subdomains.step_and_direction(got[0], alpha, kept, new, old, parts, None, coarse[:K], z, moved, x, best)
    np.testing.assert_array_equal(x, want_x)
    np.testing.assert_array_equal(best, before if kept[0] else 0)
    assert_close(moved, z + coarse[parts] + (new / old).real * p, 16, 10)


@FORMS
def test_x_takes_the_step_that_ends_the_iteration_and_no_other(kernels):
    n = 40
    x, p, r, none = np.ones(n), np.full(n, 2.0), np.zeros(n), np.zeros(n)
    alpha, kept, one = np.zeros(1), np.zeros(1), np.ones(1)
    parts, best = np.zeros(n, np.int32), np.zeros(n)
    got = monitored(np.float64, 1)
    kernels.recurrences.residual_step(*got, one, one / 2, one.copy(), none, r, alpha, kept)  # r is 0: converged
    assert got[0][CODE] == CLAIMED and alpha[0] == 2
    move = alpha, kept, one, one, parts, None, one, none, p, x, best
    kernels.subdomains.step_and_direction(got[0], *move)
    assert (x == 5).all() and (p == 2).all()
    got = monitored(np.float64, 1)
    kernels.recurrences.residual_step(*got, one, -one, one.copy(), none, r, alpha, kept)
    assert got[0][CODE] == INDEFINITE and alpha[0] == kept[0] == 0
    kernels.subdomains.step_and_direction(got[0], *move)
    assert (x == 5).all() and (p == 2).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("larger", [False, True])
def test_both_passes_are_those_of_the_specification(dtype, larger):
    n, K, found = LONG, 300, []
    for kernels in (reference, cpu):
        p, q, x, r, z, coarse = (values(n, dtype, seed) for seed in range(6))
        r, real = r * 1000 if larger else r / 1000, x.real.dtype
        parts, got = np.arange(n, dtype=np.int32) * K // n, monitored(real, 1)
        rho, curvature, new = np.full(1, 0.75, dtype), np.full(1, 0.5, dtype), np.full(1, 0.25, dtype)
        alpha, kept, old, best = np.zeros(1, real), np.zeros(1, real), np.zeros(1, dtype), np.zeros(n, dtype)
        kernels.recurrences.residual_step(*got, rho, curvature, old, q if larger else q / 1000, r, alpha, kept)
        kernels.subdomains.step_and_direction(got[0], alpha, kept, new, old, parts, None, coarse[:K], z, p, x, best)
        found.append((got[0].astype(real), alpha, kept, old, r, x, best, p))
    for want, mine in zip(*found, strict=True):
        assert_close(mine, want, 16, max(abs(want).max(), 1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [255, 256, 300])
def test_a_product_with_a_dot_has_the_bits_of_both(dtype, n, threads):
    A = as_csr(gallery.poisson5(n, n).astype(dtype))
    x, y = values(n * n, dtype, 1), values(n * n, dtype, 2)
    for number in (1, 2):
        threads(number)
        product, total, want = cpu.products.Product(A), np.zeros(1, dtype), np.zeros(1, dtype)
        plain = product(x)
        np.testing.assert_array_equal(product.with_dot(x, y, total), plain)
        cpu.vectors.dot(y, plain, want)
        assert total[0] == want[0]


@pytest.mark.parametrize("n", [3, LONG])
def test_the_first_number_that_is_not_positive(n):
    x, places = np.ones(2 * n), 2 * np.arange(n)
    assert cpu.vectors.first_not_positive(x, places) == -1
    for at in (n - 1, n // 2):
        x[2 * at] = np.nan if at % 2 else 0.0
        assert cpu.vectors.first_not_positive(x, places) == at


def test_columns_that_reach_the_limit_of_precision_have_the_bits_that_each_has_alone():
    """Best iterates too, which only such solves return."""
    A = gallery.poisson5(60, 60)
    M, B = fl.Schwarz(size=64, levels=2).factor(A), values((A.shape[0], 17), "float64", 3)
    together = fl.cg(A, B, M=M, rtol=1e-17, maxiter=60)
    for c in range(B.shape[1]):
        np.testing.assert_array_equal(together.x[:, c], fl.cg(A, B[:, c].copy(), M=M, rtol=1e-17, maxiter=60).x)
