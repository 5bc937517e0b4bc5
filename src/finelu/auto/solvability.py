"""Known null vectors and the structure of A, and their consequences for a right-hand side."""

from __future__ import annotations

from typing import Any

import numpy as np

from finelu.auto.attempt import RightHandSide
from finelu.auto.inverse_iteration import null_vector
from finelu.auto.null_space import (
    Constants,
    Evidence,
    constant,
    constants,
    is_off_constant_range,
    may_be_rounding,
    where_largest,
)
from finelu.device import namespace, to_host
from finelu.errors import OutOfTime, StructurallySingular, counted
from finelu.matrix import CSR
from finelu.matrix.traits import MatrixTraits
from finelu.preconditioners import SparseLU
from finelu.scaling import require_matching

SUMS = 64.0  # roundings of all entries, up to which their sum counts as 0


class Solvability:
    """Tests for one A whether A x = b may have no solution, or many. Each test is made once, when first needed.

    may_be_singular : whether the entries of A add up to 0 up to rounding, as they do if A or A^H takes the constant
        vector to 0.
    constants : null vectors that are constant on sets of unknowns, once looked for.
    constant_is_null : whether A takes the constant vector to 0, up to the rounding of its sums.
    structure : the structural singularity that the pattern shows, in words; "" if none is known.
    """

    def __init__(self, A: CSR, traits: MatrixTraits):
        self.A, self.mirrored, self.missing = A, traits.mirrored, traits.diagonal.missing
        self.may_be_singular = (
            float(abs(to_host(A.data.sum()))) <= SUMS * np.finfo(A.dtype).eps * A.nnz * self.mirrored[0]
        )
        self.constants: Constants | None = None
        self.constant_is_null = False
        self.structure = ""
        self.null_vector: Any = None  # (n,), on the host, once `not_unique` knows one
        self._looked = 0  # null vectors looked for: 0 none, 1 the constant vector, 2 all
        self._columns_vanish: bool | None = None  # whether column sums are 0 up to rounding; None: not tested

    def off_range(self, rhs: RightHandSide, *, thorough: bool, small: bool) -> Evidence | None:
        """The evidence, from null vectors that follow from A's pattern, that no x solves for this right-hand side; else
        None.

        thorough : whether iterations have failed. If not, vectors other than the constant one are looked for only if b
            has a part along the constant one, since the search takes as long as many iterations.
        small : see `Constants.evidence`.
        """
        if not (thorough or self.may_be_singular):
            return None
        if self.may_be_singular and not self._looked:
            self._look_for_the_constant(rhs)
        if not thorough and not (is_off_constant_range(rhs.b, rhs.scale, rhs.wanted) and self._is_left_null()):
            return None
        if self._looked < 2:
            self._looked = 2
            self.constants = constants(self.A, hermitian=self.mirrored[1] == 0) or self.constants
        return None if self.constants is None else self.constants.evidence(rhs.b, rhs.wanted, small=small)

    def _look_for_the_constant(self, rhs: RightHandSide) -> None:
        self._looked = 1
        sums = rhs.A @ namespace(rhs.b).ones_like(rhs.b)
        right = constant(self.A) if may_be_rounding(sums, self.A, self.mirrored[0]) else None
        if right is not None:
            hermitian = self.mirrored[1] == 0
            self.constants = Constants(self.A, self.A if hermitian else None, right, right if hermitian else None)
            self.constant_is_null = True

    def _is_left_null(self) -> bool:
        """Whether A^H may take the constant vector to 0."""
        if self.constants is not None and self.constants.left is not None:
            return True
        largest, differing, *_ = self.mirrored
        if self._columns_vanish is None:
            sums = self.A.tosparse().T @ namespace(self.A.data).ones(self.A.n, self.A.dtype) if differing else None
            self._columns_vanish = sums is not None and may_be_rounding(sums, self.A, largest)
        return self._columns_vanish

    def without_null_part(self, rhs: RightHandSide) -> None:
        """Remove the part of x along known null vectors, which may have grown, and only adds rounding."""
        if self.constants is not None and self.constants.right is not None:
            x = rhs.x - self.constants.right.part(rhs.x)
            _, size = rhs.residual(rhs.b, x, rhs.target)
            if size <= rhs.size:
                rhs.x, rhs.size = x, size

    def look_at_structure(self) -> None:
        """Test whether the pattern alone shows that A is singular, and set `structure` if so."""
        if not self.structure:
            try:
                require_matching(self.A)
            except StructurallySingular as error:
                self.structure = str(error)
            except OutOfTime:
                pass  # it stays unknown

    # in words

    def not_unique(self, factors: Any) -> str:
        """Why x is not unique, by the known null vectors of A, in words; "" if none is known.

        factors : the factors that led to x.
        """
        if self.constants is not None and (right := self.constants.right) is not None:
            self.null_vector = right.vector()
            words = (
                f"A is singular (A v = 0 for {right}): x is not unique, as x + c v solves A x = b, too"
                if right.exact
                else f"A is singular to working precision (A v = 0 up to rounding, for {right}): x is not unique in "
                "this precision, as x + c v solves A x = b about as well"
            )
            return f"{words}; nullspace= returns the x without a part along v"
        if self.structure:
            return "x is not unique, as A is singular"
        if self.missing and (empty := int((self.A.indptr[1:] == self.A.indptr[:-1]).sum())):
            return f"{counted(empty, 'row')} of A {'has' if empty == 1 else 'have'} no entry: x is not unique"
        if shift_of(factors) and (v := self._null_vector(factors)) is not None:
            self.null_vector = to_host(v)
            return (
                "A is singular to working precision (A v = 0 up to rounding for a v of length 1, "
                f"{where_largest(v)}): x is not unique"
            )
        if nullity := nullity_of(factors):
            return f"A is singular to working precision, or nearly ({counted(nullity, 'row')} of the last level " + (
                f"{'depends' if nullity == 1 else 'depend'} on others): x may not be unique"
            )
        return ""

    def _null_vector(self, factors: Any) -> Any:
        """The null vector that inverse iteration with complete factors of a shifted A finds; None if it finds none."""
        xp = namespace(self.A.data)
        begin = xp.asarray(np.random.default_rng(0).standard_normal(self.A.n)).astype(self.A.dtype)
        found = null_vector(self.A, factors, begin, "N")
        return None if found is None else found.v

    def empty_rows(self, b: Any) -> str:
        """The rows without an entry where b is not 0, in words; "" if there are none."""
        xp = namespace(b)
        empty = abs(self.A.tosparse()) @ xp.ones(self.A.n, b.real.dtype) == 0
        rows = to_host(xp.flatnonzero(empty & (b != 0)))
        if not rows.size:
            return ""
        first = StructurallySingular.MOST
        named = ", ".join(map(str, rows[:first])) + (" and others" if rows.size > first else "")
        return (
            f"{counted(rows.size, 'row')} of A without an entry {'has' if rows.size == 1 else 'have'} a right-hand "
            f"side that is not 0: {'row' if rows.size == 1 else 'rows'} {named}"
        )


def shift_of(factors: Any) -> float:
    """The shift of the diagonal in complete factors; 0 for other factors."""
    recipe = getattr(factors, "recipe", None)
    return float(recipe.shift) if isinstance(recipe, SparseLU) else 0.0


def nullity_of(factors: Any) -> int:
    """The rows of the last of several levels that depend on others; 0 for other factors."""
    levels = getattr(getattr(factors, "report", None), "levels", None)
    return int(levels[-1].get("nullity", 0)) if isinstance(levels, list) and levels else 0
