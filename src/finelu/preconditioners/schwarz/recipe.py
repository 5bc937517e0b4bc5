"""Additive Schwarz methods with incomplete factorizations of the subdomains and a coarse space.

M. Dryja, O. B. Widlund, 1990; the restricted form: X.-C. Cai, M. Sarkis, 1999; the coarse space of one constant a part:
R. A. Nicolaides, 1987; its balanced combination: J. Mandel, 1993, and as an abstract preconditioner J. M. Tang,
R. Nabben, C. Vuik, Y. A. Erlangga, 2009 (BNN, A-DEF1 and, in cg, A-DEF2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from finelu.errors import ParameterError
from finelu.matrix.blocks import BlockMatrix
from finelu.partition import METHODS
from finelu.preconditioners.milu0 import MILU0
from finelu.preconditioners.recipe import ArrayParameter, Recipe, checked
from finelu.preconditioners.registry import recipe_of
from finelu.preconditioners.schwarz.factors import SchwarzFactors
from finelu.preconditioners.schwarz.parts import AUTO
from finelu.preconditioners.schwarz.subdomains import no_triangles
from finelu.validation import choice, count

COARSE = ("constant", None)
COMBINE = ("balanced", "additive")


@dataclass(frozen=True, kw_only=True, repr=False)
class Schwarz(Recipe):
    """Incomplete factors of the diagonal blocks of subdomains, and a coarse space that couples them.

    M^-1 = sum_p R_p^T W B_p^-1 W R_p, and Q = Z E^-1 Z^H with E = Z^H A Z: B_p are the factors of part p by `local`,
    and Z has a vector for each part. No part waits for another in a solve: on a GPU a block of threads solves a part,
    with its unknowns in shared memory; on the CPU a thread solves eight parts at a time in vector registers,
    or one, if there are few or they differ in size.

    local : the recipe of the parts, or its name; its factors must be two triangles (ILU0(), IC0(), ILUK(level=1),
        ILUT(), ICT(), MILU0(), ...). "auto" is ILU0, whose factors of a Hermitian part are those of IC0, U = D L^H, and
        need no transpose. If A is Hermitian with a positive diagonal, D must be positive, so that cg can take M. On the
        CPU "auto" is ICT(drop_tol=1e-2) for such an A if in one of 50 rows a coupling is more than ten times all others
        together; ILU0, with a warning in the report, if ICT meets a pivot that is not positive.
    size : rows of a part. None: 128 to 448, fewer if rows are long; on a GPU, if A is Hermitian with a positive
        diagonal, aggregates with one vector a part have n / 1400, if that is less, but at least 128. On the CPU, where
        levels may be more than 2, 64 for each vector of the coarse space, at most 448; not if couplings jump from cell
        to cell, and 32 with one vector a part if small islands of cells conduct far better than the others; and on four
        threads or more for a grid in space the size that gives 4096 vectors, if that is larger and at most 448. With
        levels=2, which "auto" means for an A that is not Hermitian with a positive diagonal, they are more if the
        coarse space would otherwise have more than 4096 vectors, or with one vector a part on the CPU more than 16,384.
        On the CPU, for an A that is neither Hermitian nor symmetric, and one vector a part: 64, or more so that there
        are 4096 vectors.
    parts : the approximate number of parts, or the part of each row (n,), integers from 0 on without gaps; None: by
        `size`.
    partition : the method that finds the parts, see `finelu.partition`: "aggregate" (strong couplings stay inside),
        "geometric" (bricks of a grid that A's pattern shows), "metis", "natural" (consecutive rows), "auto" (bricks, if
        there is a grid, and its couplings do not jump from cell to cell, nor, on a GPU, differ by direction, else
        aggregates).
    overlap : layers of rows that neighbouring parts share: restricted additive Schwarz, with symmetric weights if A is
        Hermitian or symmetric.
    coarse : "constant", or None for no coarse space.
    near_nullspace : (n, m) instead of the constant, vectors that A nearly annihilates, such as the rigid body modes of
        elasticity. Each is restricted to each part and made orthonormal; linearly dependent ones are left out.
        "auto": they are found, the same in every run. Rows with entries in the same columns, wherever they lie, or the
        block rows of a BSR or BlockMatrix, are the unknowns of a node; parts consist of nodes, and there is a constant
        for each unknown of a node. If A is Hermitian with a positive diagonal, 16 steps of cg for A x = 0 from a random
        x show whether more is needed: then x and five more such vectors are added.
    levels : 2: the coarse matrix E is inverted, or factored on the CPU. More: E is solved by Schwarz again, with parts
        of 64 rows, and so on, up to this number of levels and while a coarse matrix has more than 512 rows, and vectors
        of at least 64 parts: for a Hermitian A with a positive diagonal by a fixed number of steps of Chebyshev, which
        leave about 1% of an error, else by one application. "auto": more than 2 while a coarse matrix has more than
        4096 rows on a GPU, or 8192 on the CPU, if A is Hermitian with a positive diagonal; else 2. On the CPU a coarse
        matrix of up to 32,768 rows is factored if its factors have at most 100 entries a row, as in the plane.
    combine : "balanced": P^H M^-1 P + Q with P = I - A Q (for an A that is neither Hermitian nor symmetric M^-1 P + Q);
        "additive": M^-1 + Q.
    precision : "float32" or "float64" for the factors, None for A's own. With None, local="auto" and a Hermitian A of
        double precision with a positive diagonal, L and D^-1 U of the parts (of ICT's L L^H those of the same product
        with a unit diagonal of L) are stored in single precision, and the solves compute with them in double: M changes
        by about 1e-7 of itself, and stays Hermitian. On the CPU they are so, too, for an A that is neither Hermitian
        nor symmetric, unless that changes M by more than 1e-3, as where pivots are small; M^H stays its adjoint.
    Facts: M is Hermitian, or definite, if the factors of `local` are.
    Cost: that of `local`; on the CPU a copy of the factors for the solves, of 6 bytes a real entry in single precision
    and 10 in double, and at most twice that, zeros included, where parts of different patterns are solved together; for
    the coarse space of K = m times parts vectors a factorization of the sparse E on the CPU,
    or K^3 operations and 8 K^2 bytes on a GPU.
    """

    arrays = ("parts", "near_nullspace")
    keeps_symmetry = keeps_hermitian = keeps_definite = True

    local: Recipe | str = AUTO
    size: int | None = None
    parts: int | Any | None = None
    partition: str = AUTO
    overlap: int = 0
    coarse: str | None = "constant"
    near_nullspace: str | Any | None = None
    levels: int | str = AUTO
    combine: str = "balanced"
    precision: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.local, str) and self.local.lower() == AUTO:
            object.__setattr__(self, "local", AUTO)
        else:
            local = recipe_of(self.local)
            object.__setattr__(self, "local", local)
            for fact in ("keeps_symmetry", "keeps_hermitian", "keeps_definite", "hermitian", "factored_on"):
                object.__setattr__(self, fact, getattr(local, fact))
        super().__post_init__()

    def factor(self, A: Any) -> SchwarzFactors:
        """Factor A (n, n), anything that `finelu.as_csr` takes, where it lives. A is not written.

        Raises MatrixError if A has no full diagonal or does not suit `local`, or if the coarse matrix has rank 0;
        ParameterError if `parts` or `near_nullspace` do not fit; ZeroPivot, naming part and row, if a part has no
        factors.
        """
        size = A.n_block if isinstance(A, BlockMatrix) else max(getattr(A, "blocksize", (1,)))
        given = checked(self, A)
        own = given.with_own_pattern()
        with own.unchanged(given.mirrored()):  # a solve may know it already
            return SchwarzFactors(self, own, size)

    def check(self) -> None:
        super().check()
        if self.size is not None:
            count("size", self.size, 1, of=self)
            if self.parts is not None:
                raise ParameterError(f"{self!r}: size and parts say the same thing twice; give one of them.")
        count("overlap", self.overlap, 0, of=self)
        choice("partition", self.partition, METHODS, of=self)
        choice("coarse", self.coarse, COARSE, of=self)
        choice("combine", self.combine, COMBINE, of=self)
        if self.levels != AUTO:
            count("levels", self.levels, 2, of=self)
        if self.coarse is None and self.levels not in (AUTO, 2):
            raise ParameterError(f"{self!r}: levels are those of a coarse space; leave coarse as it is.")
        local: Any = self.local
        if local != AUTO and not hasattr(local, "triangular"):
            raise ParameterError(no_triangles(self, local))
        if local != AUTO and local.normal:
            raise ParameterError(
                f"{self!r}: the factors of local={local!r} are those of A^H A, for least squares; take ILU0, IC0, "
                "ILUK, ILUT, ICT or another such recipe."
            )
        if local != AUTO and (local.triangular != "auto" or local.precision is not None):
            raise ParameterError(
                f"{self!r}: the parts are solved with in a way of their own, in the precision of Schwarz; leave "
                "triangular and precision of the local recipe as they are, and set Schwarz(precision=...)."
            )
        if self.near_nullspace not in (None, AUTO) and not isinstance(self.near_nullspace, ArrayParameter):
            raise ParameterError(f'{self!r}: near_nullspace must be an array (n, m), "auto", or None.')
        if self.coarse is None and self.near_nullspace is not None:
            raise ParameterError(f"{self!r}: a near null space is for a coarse space; leave coarse as it is.")
        if isinstance(self.local, MILU0) and self.coarse is not None:
            raise ParameterError(
                f"{self!r}: MILU0 keeps row sums, as the coarse space does, and both together correct twice; take "
                "coarse=None, or local=ILU0()."
            )
