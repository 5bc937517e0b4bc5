"""The first guess of a step of a Sequence: the last solution, or the combination of the last ones that fits best.

Source: P. F. Fischer: Projection techniques for iterative solution of Ax = b with successive right-hand sides, 1998.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from finelu.auto.attempt import RightHandSide
from finelu.auto.reuse import logarithm
from finelu.device import namespace, on_gpu, to_host
from finelu.krylov.block import times
from finelu.threads import one_blas_thread

FEW, MOST = 4, 8  # past solutions in a combination
# Iterations with factors of A's own pattern that a combination of FEW takes: 2.7 to 5.3 on grids of 3267 to 21,936
# rows, and a residual. On 24 sequences of 12 to 16 systems 5 took 0.97 of the time with 3.
COMBINING = 5
# Iterations without a combination after which one is tried again, whatever the last one saved: it takes 2% of them.
AGAIN = 50 * COMBINING
HOPED = 4.0  # times what FEW have saved, that MOST are presumed to save until there are as many
INDEPENDENT = 1e-12  # times the largest eigenvalue of the Gram matrix of unit vectors: smaller ones are left out
REFINED = 2  # solutions of the normal equations, each for the residual of the one before


class FirstGuess:
    """The last solutions x_1, x_2, ..., the last first, as the backward differences x_1, x_1 - x_2,
    x_1 - 2 x_2 + x_3, ...: where solutions change smoothly, these stay independent.

    saved : for FEW and for MOST of them, the part of the digits that the last combination has saved; all until it is
        seen.
    by_last : likewise that the last x has saved.
    without : iterations since the last combination.
    used : how many solutions the last guess was made of.
    """

    def __init__(self) -> None:
        self.differences: list[Any] = []
        self.saved = {FEW: 1.0, MOST: 1.0}
        self.by_last = 1.0
        self.without = self.used = 0

    def keep(self, x: Any) -> None:
        """Remember the solution of a step."""
        before = self.known(x)
        self.differences = [x]
        for difference in before[: MOST - 1]:
            self.differences.append(self.differences[-1] - difference)

    def forget(self) -> None:
        self.differences = []

    def known(self, b: Any) -> list[Any]:
        """The differences, in the dtype of b; [] if they do not fit it."""
        found = self.differences
        if not found or found[0].shape != b.shape or on_gpu(found[0]) != on_gpu(b):
            return []
        return [d.astype(b.dtype, copy=False) for d in found] if np.can_cast(found[0].dtype, b.dtype) else []

    def begin(self, rhs: RightHandSide, expected: float, product: float) -> None:
        """Begin with the last x, or with a combination of the last ones, where this is expected to save more iterations
        than it takes, and if its residual is smaller than b.

        expected : the iterations of the step from x = 0; Inf if unknown.
        product : the iterations that take as long as a product with A, relative to those with factors of A's pattern.
        """
        known, self.used = self.known(rhs.b), 0
        if self.without >= AGAIN:
            self.saved, self.by_last = {FEW: 1.0, MOST: 1.0}, 1.0
        many = min(expected, AGAIN)
        gains = {m: part * many - COMBINING * product * m / FEW for m, part in self.saved.items()}
        m = max(gains, key=lambda m: gains[m])
        before = rhs.size
        if len(known) > 1 and gains[m] > 0 and before > rhs.target:
            guess, part = _combined(rhs.A, known[:m], rhs.b)
            self._take(rhs, guess, min(m, len(known)))
            if len(known) >= FEW and rhs.target > 0:
                wanted = logarithm(before, rhs.target)
                all_saved = logarithm(before, max(rhs.size, rhs.target)) / wanted
                self.saved[FEW] = min(logarithm(before, max(part * before, rhs.target)) / wanted, all_saved)
                if m == MOST:
                    self.saved[MOST] = all_saved if len(known) >= MOST else min(HOPED * self.saved[FEW], 1.0)
                self.without = 0
        elif known and before > rhs.target and expected >= 2 and self.by_last * many > product:
            self._take(rhs, known[0].copy(), 1)
            if rhs.target > 0:
                self.by_last = logarithm(before, max(rhs.size, rhs.target)) / logarithm(before, rhs.target)

    def _take(self, rhs: RightHandSide, guess: Any, used: int) -> None:
        _, size = rhs.residual(rhs.b, guess, rhs.target)
        if size < rhs.size:
            rhs.x, rhs.size, rhs.history, rhs.recurrence, self.used = guess, size, [size], [size], used


def _combined(A: Any, known: list[Any], b: Any) -> tuple[Any, float]:
    """The combination V y of the `known` vectors with the least ||b - A V y||, and the part of ||b|| that one of the
    first FEW leaves; NaN where numbers overflow, or the eigenvalues of their products are not found."""
    xp = namespace(b)
    V = xp.stack(known, axis=1)
    W = times(A, V)
    with one_blas_thread():
        gram, right = to_host(W.conj().T @ W), to_host(W.conj().T @ b)
        sizes = np.sqrt(gram.diagonal().real)
        if not (np.isfinite(gram).all() and np.isfinite(right).all() and (sizes > 0).any()):
            return xp.full_like(b, np.nan), 1.0
        unit = np.where(sizes > 0, 1 / np.where(sizes > 0, sizes, 1), 0).astype(sizes.dtype)
        gram = gram * unit * unit[:, None]
        try:
            solve = _solver(gram)
            few = _solver(gram[:FEW, :FEW])(unit[:FEW] * right[:FEW])
        except np.linalg.LinAlgError:
            return xp.full_like(b, np.nan), 1.0
        total = float(np.vdot(to_host(b), to_host(b)).real) if xp is np else float(xp.vdot(b, b).real)
        left = max(1 - float(np.vdot(few, unit[:FEW] * right[:FEW]).real) / total, 0.0) if total else 1.0
        y = unit * solve(unit * right)
        for _ in range(REFINED - 1):
            r = b - W @ xp.asarray(y.astype(b.dtype))
            y = y + unit * solve(unit * to_host(W.conj().T @ r))
        return V @ xp.asarray(y.astype(b.dtype)), float(np.sqrt(left))


def _solver(gram: Any) -> Any:
    """The function g -> gram^+ g, for a Hermitian matrix without negative eigenvalues."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > max(INDEPENDENT, 10 * float(np.finfo(gram.dtype).eps)) * abs(values[-1])
    return lambda g: vectors[:, kept] @ ((vectors[:, kept].conj().T @ g) / values[kept])
