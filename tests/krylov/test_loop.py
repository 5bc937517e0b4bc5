"""What all methods share: when the host looks, where a cycle begins, who ends it, products shared by threads."""

import re
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from krylov_cases import (
    DTYPES,
    METHODS,
    kind_for,
    name,
    operator,
    residual,
    system,
)

import finelu.kernels
from finelu import gallery
from finelu.errors import MatrixError
from finelu.kernels import kernels_for, monitor
from finelu.kernels.cpu import products
from finelu.krylov import RESTART, cg, gmres, minres, sqmr
from finelu.krylov.cg import CG
from finelu.krylov.loop import Loop
from finelu.krylov.residual import PROBES
from finelu.krylov.system import System
from finelu.result import Status


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_the_answer_does_not_depend_on_how_often_the_host_looks(method, look_every):
    A, b = system(kind_for(method))
    answers = []
    for interval in (1, 3, 8, 1000):
        look_every(interval)
        answers.append(method(A, b, rtol=1e-9, maxiter=500))
    for answer in answers[1:]:
        assert answer.iterations == answers[0].iterations
        np.testing.assert_array_equal(answer.x, answers[0].x)
        np.testing.assert_array_equal(answer.history, answers[0].history)


@pytest.mark.parametrize("behind", [True, False])
def test_the_host_looks_the_more_often_the_further_the_device_is_behind(behind, look_every, monkeypatch):
    A, b = system("spd")
    look_every(8)
    monkeypatch.setattr(kernels_for(b).cycle.Snapshot, "ready", lambda self: not behind)
    products = []
    solution = cg(operator(A, lambda v: (products.append(1), A @ v)[1]), b, rtol=1e-9)
    wasted = len(products) - solution.iterations - PROBES
    assert solution.converged and (wasted <= 4 if behind else 4 < wasted <= 2 * 8 + 1)


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_looking_rarely_queues_a_bounded_number_of_iterations_too_many(method, look_every):
    A, b = system(kind_for(method))
    products = []

    def counted():
        seen = []
        products.append(seen)
        return operator(A, lambda v: (seen.append(1), A @ v)[1])

    for interval in (1, 4):
        look_every(interval)
        method(counted(), b, rtol=1e-9)
    per_iteration = method.method.products
    restart_check = 1 + 4  # gmres may learn of its end one cycle later, and one look
    assert len(products[0]) <= len(products[1]) <= len(products[0]) + per_iteration * 2 * 4 + restart_check


def counting(A):
    """(operator, list with an element for each product with A or A^H)."""
    done = []
    forward, adjoint = (lambda v: (done.append(1), A @ v)[1]), (lambda v: (done.append(1), A.conj().T @ v)[1])
    return spla.LinearOperator(A.shape, matvec=forward, rmatvec=adjoint, dtype=A.dtype), done


@pytest.mark.parametrize("method", METHODS, ids=name)
@pytest.mark.parametrize("how", ["exact M", "x0 of zeros", "x0", "no M", "maxiter"])
def test_a_claim_takes_one_product_more_than_the_iterations(method, how):
    A, b = system("spd" if method is minres and how in ("exact M", "x0 of zeros", "x0") else kind_for(method))
    product, done = counting(A)
    lu = spla.splu(A.tocsc())
    M = spla.LinearOperator(A.shape, matvec=lu.solve, rmatvec=lambda v: lu.solve(v, "H"), dtype=A.dtype)
    options = {
        "exact M": {"M": M},
        "x0 of zeros": {"M": M, "x0": 0 * b},
        "x0": {"M": M, "x0": np.ones(b.size)},
        "no M": {},
        "maxiter": {"maxiter": 5, "rtol": 1e-12},
    }[how]
    solution = method(product, b, **{"rtol": 1e-8} | options)
    assert solution.converged == (how != "maxiter")
    of_symmetry = 2 if method is sqmr else 0  # products before the first iteration
    most = method.method.products * solution.iterations + of_symmetry + 1 + (how == "x0")
    if method.method.restarts:
        most += -(-solution.iterations // RESTART) - 1  # each further cycle begins with b - A x
    assert len(done) <= most
    assert solution.residual_norm == pytest.approx(residual(A, b, solution.x), rel=1e-4)


@pytest.mark.parametrize("rtol", [1e-8, 1e-13])
def test_products_show_where_rounding_may_be_as_large_as_the_tolerance(rtol):
    A, b = system("spd")
    product, done = counting(A)
    solution = cg(product, b, rtol=rtol)
    assert solution.converged and len(done) == solution.iterations + 1 + (PROBES if rtol < 1e-12 else 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_minres_sees_by_its_second_iteration_that_an_operator_is_not_symmetric(dtype):
    product, _ = counting(system("general", dtype)[0])
    solution = minres(product, system("general", dtype)[1], rtol=1e-6)
    assert solution.status is Status.NOT_SYMMETRIC and solution.iterations <= 2
    A, b = system("indefinite", dtype)
    for size in (1e-30, 1.0, 1e30):
        if size == 1 or dtype in (np.float64, np.complex128):
            assert minres(counting(A * size)[0], b, rtol=1e-4).converged


def test_a_keyboard_interrupt_goes_through():
    A, b = system("spd")

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cg(A, b, watch=interrupt)


def test_an_iterate_that_was_verified_is_not_lost_to_a_recurrence_that_drifts(every):
    A, b = np.diag(np.repeat([1.0, 2.0, 5.0], 3)), np.linspace(1, 2, 9)  # a cycle of cg takes three iterations
    untrue = {
        2: 1.25,
        4: 0.05,
        5: 0.05,
    }  # iteration -> its product is too large by this factor: x drifts off, r does not
    done = []
    product = lambda v: (A @ v) * untrue.get(len(done), 1)  # noqa: E731
    operator = spla.LinearOperator(A.shape, matvec=product, dtype=A.dtype)
    solution = cg(operator, b, rtol=1e-12, callback=lambda x: done.append(residual(A, b, x)))
    assert solution.status is Status.STAGNATED and len(done) == 6
    assert done[2] < 0.5 * np.linalg.norm(b) and min(done[4:]) > 1.5 * done[2]  # what ended each of the two cycles
    assert residual(A, b, solution.x) == pytest.approx(done[2])
    assert solution.residual_norm == pytest.approx(done[2])


def test_a_new_cycle_begins_from_the_better_of_the_last_and_the_best_iterate(backend):
    A, b = 2 * np.eye(4), np.arange(1.0, 5.0)
    exact = b / 2
    solve = Loop(
        CG, System.checked(backend.move(sp.csr_matrix(A)), backend.move(b)), rtol=1e-9, atol=0.0, maxiter=99,
        callback=None, watch=None,
    )  # fmt: skip
    best, (r,) = solve.keeps_best(), solve.vectors(1)

    def reach(last, kept, code):
        solve.x[:], best[:] = backend.move(last), backend.move(kept)
        solve.state[monitor.CODE] = code
        solve._look(wait=True)

    assert solve.cycle(r)
    reach(6 * exact, 0.7 * exact, monitor.BROKEN)
    assert solve.cycle(r)  # 0.7 exact halves the residual, 6 exact does not
    np.testing.assert_array_equal(backend.fetch(solve.x), 0.7 * exact)
    np.testing.assert_allclose(backend.fetch(r), 0.3 * b)
    reach(0.8 * exact, 0.1 * exact, monitor.BROKEN)
    assert not solve.cycle(r)  # the last one is the better of these, but far from half of the first
    np.testing.assert_array_equal(backend.fetch(solve.x), 0.8 * exact)
    reach(9 * exact, -exact, monitor.BREAKDOWN)
    solution = solve.end()
    np.testing.assert_array_equal(backend.fetch(solution.x), 0.8 * exact)
    assert solution.residual_norm == pytest.approx(0.2 * np.linalg.norm(b))


def test_an_operator_that_answers_wrongly_is_named():
    b = np.ones(4)
    with pytest.raises(MatrixError, match="M gave complex numbers for a real vector"):
        gmres(np.eye(4) * 2, b, M=lambda r: r * 1j)
    with pytest.raises(MatrixError, match=r"M gave an array of shape \(2,\) for a vector of length 4"):
        gmres(np.eye(4) * 2, b, M=lambda r: r[:2])


def test_the_cuda_header_numbers_the_monitor_as_python_does():
    from finelu.kernels.cuda.runtime.constants import header

    (names,) = re.findall(r"^enum \{ ([^}]+) \};$", header(vars(monitor)), re.MULTILINE)
    numbers = dict(entry.split(" = ") for entry in names.split(", "))
    numbers |= dict(re.findall(r"^constexpr double (\w+) = ([^;]+);$", header(vars(monitor)), re.MULTILINE))
    assert {name: float(value) for name, value in numbers.items()} == {
        name: value for name, value in vars(monitor).items() if name.isupper()
    }
    for stem in ("recurrences", "cycle", "arnoldi"):
        text = (Path(finelu.kernels.__file__).parent / "cuda" / f"{stem}.cu").read_text()
        assert '#include "runtime/constants.cuh"' in text and "enum {" not in text


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_a_product_shared_by_threads_has_the_bits_of_one_thread(threads, count, dtype):
    threads(count)
    A = gallery.poisson7(50)  # with rows without entries, and a long one
    A = sp.csr_matrix(sp.diags(np.minimum(np.arange(A.shape[0]) % 5, 1.0)) @ A)
    A.eliminate_zeros()
    n = A.shape[0]
    A = sp.csr_matrix(sp.vstack([A[: n - 1], np.ones((1, n))])).astype(dtype)
    if A.dtype.kind == "c":
        A.data *= np.exp(1j * np.arange(A.nnz)).astype(dtype)
    A.sort_indices()
    x = np.random.default_rng(0).standard_normal(2 * n).astype(dtype)[::2]
    product = products.Product(A)
    for _ in range(5):
        np.testing.assert_array_equal(product(x), A @ x)
    begins = product.plan[0]  # the rows at which items of work begin
    items = begins.size - 1
    assert (items == 1 if count == 1 else items >= 2 * count) and begins[0] == 0 and begins[-1] == n
