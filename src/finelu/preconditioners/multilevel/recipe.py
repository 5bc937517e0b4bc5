"""MultilevelILU: an incomplete LU by levels whose inverse factors stay bounded (the ILUPACK system).

J. I. Aliaga, E. Dufrechou, P. Ezzatti, E. S. Quintana-Ortí: An efficient GPU version of the preconditioned GMRES
method, 2019, section 2; M. Bollhöfer, Y. Saad: Multilevel preconditioners constructed from inverse-based ILUs, 2006.

A level scales and orders its matrix, and factors the rows and columns with bounded pivots and inverses:

    P_r D_r A D_c P_c = ( B  F ) ~ ( L_B     ) ( D_B   ) ( U_B  U_F )
                        ( G  C )   ( L_G  I  ) (     S ) (       I  )

S, the Schur complement on the deferred rows and columns, is the matrix of the next level. With low_memory, L_G and U_F
are dropped once S is made; a level is applied by two solves with L_B D_B U_B and a product each with G and F, equation
(11). Otherwise they are kept, and one solve each is enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from finelu.preconditioners.multilevel.factors import MultilevelFactors
from finelu.preconditioners.multilevel.settings import Settings, matrix_of


@dataclass(frozen=True, kw_only=True, repr=False)
class MultilevelILU(Settings):
    """Inverse-based multilevel incomplete LU: robust on indefinite, badly scaled, saddle-point and circuit systems.

    drop_tol : an entry of L or U is dropped if its magnitude, times the estimated growth of the inverse factor in its
        row or column, is at most drop_tol. Entries of A off the diagonal are left out if they are at most a tenth of
        that times the largest of their row, and of their column, once scaled. 0 drops nothing. None: 1e-3. If 20 steps
        of GMRES then leave more than 1e-4 of a random residual, or if a level leaves a dense rest, complete factors are
        made, whose cost is known from the pattern: if they have too many entries, or too much work, factors with 1e-5
        and ten times the fill instead. The better factors are taken; the report names them.
    condest : a row and column is deferred to the next level if its estimated norm in the inverse factors is larger.
        float("inf"): only bad pivots are deferred. Smaller values give more levels and safer factors.
    fill : the most entries of a row of U or a column of L, relative to the mean row of the matrix of its level.
        float("inf"): no limit. None: 10, or 100 with the smaller drop_tol of None.
    ordering : of each level: "amd" (approximate minimum degree; meshes of 20,000 rows or more are cut by level sets
        first), which "auto" is; "mmd" (minimum degree of SciPy's SuperLU); "nd" (nested dissection, needs pymetis);
        "rcm"; or None.
    matching : True permutes the columns so that the product of the diagonal is as large as possible, and scales by the
        dual variables, so that the diagonal is 1 and no entry is larger. False equilibrates rows and columns.
    symmetric : True makes a symmetric (Hermitian, complex symmetric) M with 1x1 and 2x2 pivots, as `minres`, `sqmr` and
        `cg` need it, and raises an error if A is not symmetric. None does so if A is symmetric. False does not.
    definite : True replaces D by |D|, so that M is Hermitian positive definite for a Hermitian indefinite A, as
        `minres` and `cg` need it: eigenvalues of A M^-1 near 1 and -1 (Gill, Murray, Ponceleon, Saunders 1992). An
        error if A is not Hermitian.
    parts : 1: threads factor subtrees of the elimination tree of each level at the same time, and then the part above
        them; the order is that of one thread. A larger number: that many parts of A, found by nested dissection, are
        factored at the same time, and the rows that couple them are left to the next level (needs pymetis). M depends
        on `parts`, but not on the number of threads.
    form : "crout": rows one after the other (Li, Saad, Chow 2003), on the CPU. "independent": as many pivots at a time
        as are not coupled (Saad 1996), on the GPU for an A there; pivots have one row. "auto": "independent" for an A
        of 30,000 rows or more on a GPU, if `ordering` and `parts` are not given, except for levels that need pivots of
        two rows; else "crout".
    dense_size : the rest is factored by LAPACK once it has no more rows than this, or is a quarter full.
    levels : the most levels. LAPACK factors the last one, if it has at most 6000 rows.
    low_memory : True keeps F and G, which are parts of A, and applies M by equation (11), with two solves each with L_B
        and U_B a level. False keeps L_G and U_F, which have more entries, for one solve each: equations (6) to (8).
        None: True on the CPU, False on a GPU, where the time of a solve hardly depends on its entries.
    shift, triangular, precision : as in ILU0.
    Cost of "crout", on the CPU: the matching, and the ordering of less than 20,000 rows, on one thread, the rest on
    all threads. Cost of "independent": some hundred sparse products on the GPU, and the matching on the host. An
    application takes, per level, two solves each with L_B and with U_B, and a product each with G and F.
    `update` keeps the order of the first level.
    """

    name = "multilevel"

    def factor(self, A: Any) -> MultilevelFactors:
        """Factor A (n, n), anything that `finelu.as_csr` takes; diagonal entries may be missing. A is not written.

        Raises StructurallySingular (a MatrixError) if no permutation fills the diagonal, ZeroPivot if A is singular.
        """
        return MultilevelFactors(self, matrix_of(self, A))
