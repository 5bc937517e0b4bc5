"""The minimal residual method."""

from __future__ import annotations

import cmath
from typing import Any

import numpy as np

from finelu.device import namespace
from finelu.kernels.monitor import BETA, BETA_1, COS, COS_OLD, INVERSE, PHI_BAR, SCALE
from finelu.krylov.loop import Loop
from finelu.krylov.method import Method
from finelu.krylov.symmetry import asymmetric, rounding, third_of_digits
from finelu.result import Solution, Status


class MINRES(Method):
    """Solve A x = b for a Hermitian, possibly indefinite A by preconditioned MINRES.

    Arguments as in `finelu.krylov`, and
    shift : a real number; (A - shift I) x = b is solved.
    show : True prints the norm of each iteration, and how the solve ended, to stdout.
    check : True raises MatrixError, a ValueError, where the status would be NOT_SYMMETRIC.
    M must be Hermitian positive definite. It minimizes the residual in the norm of M.
    The convergence test uses the 2-norm of the residual itself, which is updated along with x. callback(x) is called
    after each iteration. Cost of an iteration: one product with A, one with M, two dot products, a norm and two passes
    over vectors; memory 11 vectors. Before the first iteration A and M are each applied once more to test their
    symmetry; the solve ends with Status.NOT_SYMMETRIC if one is not symmetric. For a LinearOperator on the host the
    second iteration makes the test of A instead, without another product, so there is none if the first one converges.
    If A is singular and b outside its range, the solve ends near the smallest possible residual with Status.STAGNATED:
    x would grow without bound, so a cycle ends once the rounding of x reaches a tenth of the residual.
    Source: Paige & Saunders 1975.
    """

    needs = "hermitian"
    by_rows = True

    @classmethod
    def together(cls, options: dict[str, Any]) -> bool:
        return True

    @staticmethod
    def iterate(loop: Loop) -> Solution:
        """The Lanczos process with a QR factorization of its tridiagonal T by rotations. Iteration k:

        (1) alpha_k = z_k^H A z_k, with z_k = M^-1 v_k
        (2) v = A z_k - alpha_k v_k - beta_k v_(k-1),  beta_(k+1)^2 = v^H M^-1 v,  v_(k+1) = v / beta_(k+1)
        (3) delta, gamma_bar = the rotations k - 2 and k - 1 applied to column k of T, epsilon the entry that they fill
        (4) gamma = sqrt(gamma_bar^2 + beta_(k+1)^2),  cos = gamma_bar / gamma,  sin = beta_(k+1) / gamma
        (5) phi = cos phi_bar,  phi_bar = -sin phi_bar
        (6) w_k = (z_k - delta w_(k-1) - epsilon w_(k-2)) / gamma,  x += phi w_k
        (7) r_k = sin^2 r_(k-1) + phi_bar cos v_(k+1)
        """
        A, M, x, best, k = loop.A, loop.M, loop.x, loop.keeps_best(), loop.kernels
        state, norms = loop.state, loop.norms
        r, v, v_old, z, w, w_old = loop.vectors(6)
        alpha, square = loop.scalars(2)
        lanczos = loop.xp.zeros(21, loop.real)
        inverse, first = loop.real_scalar(), True
        every = [one for (one,) in loop.singly()]
        scales = dict.fromkeys(every, 1.0)  # the powers of two by which products with A are divided
        early: dict[Loop, Any] = {one: Early(one) for one in every if one.spares}
        while loop.cycle(r):
            y = M @ r
            if first:
                first, failed = False, asymmetric(loop, M, r, y, k.vectors.dot)
                if not early:
                    p = A @ y
                    failed += asymmetric(loop, A, y, p, k.vectors.dot)
                    for one, product, own in loop.singly(p, r):  # the size of A M, whose square must be in range
                        scales[one] = one.power(one.size(product) / one.size(own))
                for one in failed:
                    one.fail(Status.NOT_SYMMETRIC)
            k.vectors.dot(r, y, square)
            for one, own, its_lanczos, its_inverse in loop.singly(square, lanczos, inverse):
                failure = begin(its_lanczos, complex(own[0]), scales[one])
                if failure is None:
                    one.xp.copyto(its_inverse, its_lanczos[INVERSE : INVERSE + 1])
                else:
                    one.fail(failure)
            k.vectors.scaled(inverse, r, v)  # v = r / beta_1, z = M^-1 v
            k.vectors.scaled(inverse, y, z)
            if not loop.without([one for (one,) in loop.singly() if one.stopped]):
                continue
            for vector in (v_old, w, w_old):
                vector.fill(0)
            for test in early.values():
                test.begin()
            factor = factor_of(loop, scales)
            while loop.goes_on():
                p = A @ z
                if early and any(early[one].iteration < 2 for (one,) in loop.singly()):
                    for one, *own in loop.singly(r, z, p, alpha, lanczos):
                        if early[one].iteration < 2:
                            scales[one] = early[one](*own, scales[one])
                    factor = factor_of(loop, scales)
                p = divided(loop, p, factor)
                k.vectors.dot(z, p, alpha)  # (1)
                k.recurrences.minres_lanczos(state, lanczos, alpha, p, v, v_old)  # (2), not yet divided by beta
                v, v_old = v_old, v
                y = M @ v
                k.vectors.dot(v, y, square)
                k.recurrences.minres_rotation(state, norms, lanczos, alpha, square)  # (3), (4), (5)
                k.recurrences.minres_step(state, lanczos, y, v, z, w, w_old, x, best, r)  # (6), (7)
                w, w_old = w_old, w
                k.vectors.norm(r, loop.norm)
                k.recurrences.record(state, norms, loop.history, None)
                loop.tell()
        return loop.end()


minres = MINRES.solve


def factor_of(loop: Loop, scales: dict[Loop, float]) -> Any:
    """1 / scale of each column, on the device of the vectors; None if all are 1."""
    if all(scale == 1 for scale in scales.values()):
        return None
    factor = loop.real_factor()
    for one, own in loop.singly(factor):
        xp = namespace(own)  # whose assignment of a number would compile code on a GPU
        xp.copyto(own, xp.asarray(np.full(1, 1 / scales[one], loop.real)))
    return factor


def divided(loop: Loop, p: Any, factor: Any) -> Any:
    """p, that of each column times its factor; p itself if that is None."""
    if factor is None:
        return p
    out = loop.xp.empty_like(p)
    loop.kernels.vectors.scaled(factor, p, out)
    return out


class Early:
    """The first two iterations with an A that is known by its products only: they show its size and its symmetry, for
    which other matrices are multiplied twice before the first iteration."""

    def __init__(self, loop: Loop):
        self.loop, self.iteration = loop, 0
        self.z: Any = None  # that of the first iteration of a cycle, and its product with A / scale
        self.p: Any = None
        self.size = 0.0  # of this product

    def begin(self) -> None:
        """A cycle begins: vectors of the last one are not of its recurrence."""
        self.iteration = 0 if self.iteration < 2 else self.iteration

    def __call__(self, r: Any, z: Any, p: Any, alpha: Any, lanczos: Any, scale: float) -> float:
        """The power of two by which products with A are divided; p = A z.  alpha : z^H A z of the last iteration, with
        its imaginary part.

        The second iteration ends the solve with NOT_SYMMETRIC unless z_1^H A w = (A z_1)^H w to a third of the digits
        of |A z_1| |w|, where w = M^-1 A z_1 = alpha_1 z_1 + beta_2 z_2. Where M = I, this is the test of `symmetric`.
        For a Hermitian A it holds for any z_1 and w, also where beta_2 is rounding, and z_2 has lost its digits; up to
        rounding, which is more than that where z_1 is nearly a null vector.
        """
        loop, self.iteration = self.loop, self.iteration + 1
        if self.iteration == 1:
            size = loop.size(p)
            scale = loop.power(size / (loop.size(r) * float(lanczos[INVERSE])))
            lanczos[SCALE] = scale
            self.z, self.p, self.size = z.copy(), p / scale, size / scale
            return scale
        of_first, beta = complex(alpha[0]), float(lanczos[BETA])
        left, right = loop.scalars(2)
        loop.kernels.vectors.dot(self.z, p if scale == 1 else p / scale, left)
        loop.kernels.vectors.dot(self.p, z, right)
        differs = beta * (complex(left[0]) - complex(right[0])) + 2j * of_first.real * of_first.imag
        w = of_first.real * self.z + beta * z
        if abs(differs) > third_of_digits(loop) * self.size * loop.size(w):
            product = of_first.real * self.p + beta * (p if scale == 1 else p / scale)
            if abs(differs) > rounding(loop, (self.z, product), (self.p, w)):
                loop.fail(Status.NOT_SYMMETRIC)
        self.z = self.p = None
        return scale


def begin(lanczos: Any, square: complex, scale: float) -> Status | None:
    """Start the recurrence from square = beta_1^2 = r^H M^-1 r, or say why it cannot be.

    Before the first rotation all cosines are 1, and phi_bar is beta_1, the residual to reduce.
    scale : the products with A are divided by it.
    """
    if not cmath.isfinite(square):
        return Status.NOT_FINITE
    if square.real <= 0:
        return Status.INDEFINITE_PRECONDITIONER
    first = np.zeros(lanczos.size, lanczos.dtype)
    beta = np.sqrt(lanczos.dtype.type(square.real))
    first[[COS, COS_OLD]] = 1
    first[[PHI_BAR, BETA_1]] = beta
    first[INVERSE], first[SCALE] = 1 / beta, scale
    namespace(lanczos).copyto(lanczos, namespace(lanczos).asarray(first))
    return None
