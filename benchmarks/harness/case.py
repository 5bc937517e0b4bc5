"""A matrix with the reference results that measurements are checked against, and the loop over the suite.

The references are the sequential factors of the CPU (relative error) and the definition T x = b (backward error).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks.harness.clock import Budget
from benchmarks.harness.record import Run, RunEnded
from benchmarks.harness.suite import LeftOut, Problem, names_of, suite
from finelu.kernels import kernels_for
from finelu.matrix import CSR


def relative_error(x: Any, reference: Any) -> float:
    """The 2-norm of x - reference over that of reference, on the host; NaN if x holds one."""
    with np.errstate(all="ignore"):
        return float(np.linalg.norm(x - reference) / np.linalg.norm(reference))


def backward_error(T: Any, b: Any, x: Any) -> float:
    """max |T x - b| over max(|T| |x| + |b|): a few ulps for any correct solve, however ill-conditioned T is."""
    with np.errstate(all="ignore"):
        return float(np.max(np.abs(T @ x - b)) / np.max(abs(T) @ np.abs(x) + np.abs(b)))


UNWRITTEN = 1e30  # what results hold beforehand, so that an entry left out shows; not NaN: MKL multiplies it by 0
BUFFERS = 4  # right-hand sides taken in turn, so that no cache holds the one asked for
SIDES = ("lower", "upper")


@dataclass
class Case:
    """A matrix with what all its measurements need: the checked CSR and the reference factors, all on the host."""

    problem: Problem
    S: sp.csr_matrix

    @staticmethod
    def load(problem: Problem) -> Case:
        """Read or make the matrix; LeftOut if it has no ILU(0)."""
        case = Case(problem, problem.load())
        if case.lu_bad_row >= 0:
            raise LeftOut(f"ILU(0) meets a zero pivot in row {case.lu_bad_row}")
        return case

    @property
    def name(self) -> str:
        return self.problem.name

    @cached_property
    def A(self) -> CSR:
        return finelu.as_csr(self.S)

    @cached_property
    def _ilu0(self):
        return _sequential("ilu0", self.A)

    @property
    def lu_bad_row(self) -> int:
        return self._ilu0[0]

    @property
    def lu(self) -> np.ndarray:
        """The factors L and U of ILU(0), (nnz,) in A's order."""
        return self._ilu0[1]

    @cached_property
    def lower_triangle(self) -> CSR:
        return finelu.as_csr(sp.tril(self.S, format="csr"))

    @cached_property
    def symmetric(self) -> bool:
        difference = abs(self.S - self.S.T)
        return difference.nnz == 0 or difference.max() <= 1e-14 * abs(self.S).max()

    @cached_property
    def cholesky(self) -> np.ndarray | None:
        """The factor of IC(0) in the order of `lower_triangle`, or None where A has none."""
        if not self.symmetric or np.any(self.S.diagonal() <= 0):
            return None
        bad, values = _sequential("ic0", self.lower_triangle)
        return values if bad < 0 else None

    @cached_property
    def factors(self) -> CSR:
        """L and U of ILU(0) in one CSR."""
        return CSR(self.A.indptr, self.A.indices, self.lu, self.A.diag)

    def triangle(self, side: str) -> sp.csr_matrix:
        """Strict L or U with its diagonal, alone in a matrix."""
        LU = self.factors.tosparse()
        return sp.tril(LU, -1, format="csr") if side == "lower" else sp.triu(LU, format="csr")

    def full_triangle(self, side: str) -> sp.csr_matrix:
        """The triangle as a mathematical matrix: L with its unit diagonal, or U."""
        T = self.triangle(side)
        return T + sp.identity(T.shape[0], format="csr") if side == "lower" else T

    def facts(self) -> dict:
        """What tables and figures sort by; levels are those of L, found by the triangular solver's analysis."""
        row_lengths = np.diff(self.A.indptr)
        levels = finelu.TriangularSolver(self.factors, lower=True, unit=True, method="levels").levels
        return {
            "n": self.A.n,
            "nnz": self.A.nnz,
            "levels": int(levels),
            "rows_per_level": self.A.n / levels,
            "row_mean": float(row_lengths.mean()),
            "row_max": int(row_lengths.max()),
            "symmetric": bool(self.symmetric),
            "ic0": self.cholesky is not None,
            "apart": self.problem.apart,
        }

    def right_hand_sides(self) -> list[np.ndarray]:
        rng = np.random.default_rng(2024)
        return [rng.standard_normal(self.A.n) for _ in range(BUFFERS)]


def loaded(run: Run, budget: Budget, chosen: Iterable[Problem]) -> Iterator[tuple[str, sp.csr_matrix]]:
    """Name and matrix of each problem that is read before the budget is spent; the run says why the others are not."""
    for problem in chosen:
        if budget.over():
            run.left_out[problem.name] = "the budget was spent"
            continue
        try:
            S = problem.load()
        except LeftOut as reason:
            run.left_out[problem.name] = str(reason)
            continue
        yield problem.name, S


def over_suite(run: Run, options: argparse.Namespace, budget: Budget, measure_one: Callable[[Case], None]) -> bool:
    """Call measure_one on each matrix that `options` names and that has an ILU(0), saving `run` after each.

    A matrix that is left out is recorded with the reason. False if the run had to end, because measure_one raised (a
    GPU that answers no more) or the user interrupted it.
    """
    try:
        for problem in suite(options.matrix_folder, names_of(options.matrices), quick=options.quick):
            if budget.over():
                run.left_out[problem.name] = "the budget was spent"
                continue
            begun = budget.spent()
            try:
                case = Case.load(problem)
                run.matrices[case.name] = case.facts()
            except LeftOut as reason:
                run.left_out[problem.name] = str(reason)
                continue
            except Exception as error:
                run.left_out[problem.name] = f"{type(error).__name__}: {error}"
                continue
            with run.attempt(case.name, "the rest of the run", fatal=True):
                measure_one(case)
            run.save(options.out)
            took = budget.spent() - begun
            print(f"{budget.spent():5.0f} s  {case.name}: {case.A.n} rows, {took:.1f} s", flush=True)
    except (RunEnded, KeyboardInterrupt):
        return False
    return True


def _sequential(work: str, pattern: CSR) -> tuple[int, np.ndarray]:
    """The first bad row (or -1) and the values of the sequential factorization on the CPU."""
    k = kernels_for(pattern.data).elimination
    values = np.empty_like(pattern.data)
    bad = getattr(k, work)(getattr(k, f"{work}_analysis")(pattern, "sequential"), pattern.data, values)
    return int(bad), values


def release_gpu() -> None:
    """Wait for the device, which raises if it broke, and give its memory back."""
    import cupy

    cupy.cuda.get_current_stream().synchronize()
    cupy.get_default_memory_pool().free_all_blocks()


def to_gpu(M: Any) -> CSR:
    """A CSR (finelu's or scipy's) as a CSR of CuPy arrays."""
    import cupy

    diag = cupy.asarray(M.diag) if hasattr(M, "diag") else None
    return CSR(cupy.asarray(M.indptr), cupy.asarray(M.indices), cupy.asarray(M.data), diag)


def host(array: Any) -> np.ndarray:
    return array.get() if hasattr(array, "get") else array
