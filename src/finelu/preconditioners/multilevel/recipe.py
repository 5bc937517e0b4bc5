"""MultilevelILU: an incomplete LU by levels whose inverse factors stay bounded (the ILUPACK system).

J. I. Aliaga, E. Dufrechou, P. Ezzatti, E. S. Quintana-Ortí: An efficient GPU version of the preconditioned GMRES
method, 2019, section 2; M. Bollhöfer, Y. Saad: Multilevel preconditioners constructed from inverse-based ILUs, 2006.

A level scales and orders its matrix, and factors it as far as that goes well:

    P_r D_r A D_c P_c = ( B  F ) ~ ( L_B     ) ( D_B   ) ( U_B  U_F )
                        ( G  C )   ( L_G  I  ) (     S ) (       I  )

S, what is left of the deferred rows and columns, is the matrix of the next level. With low_memory, L_G and U_F
make S and are thrown away; a level is applied by two solves with L_B D_B U_B and a product each with G and F, equation
(11). Else they are kept, for one solve each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from finelu.preconditioners.multilevel.factors import MultilevelFactors
from finelu.preconditioners.multilevel.settings import Settings, matrix_of


@dataclass(frozen=True, kw_only=True, repr=False)
class MultilevelILU(Settings):
    """Inverse-based multilevel incomplete LU: robust on indefinite, badly scaled, saddle-point and circuit systems.

    drop_tol : an entry of L or U is dropped where its magnitude, times the estimated growth of the inverse factor in
        its row or column, is at most drop_tol. 0 drops nothing. None: 1e-3 and, where 20 steps of GMRES leave more than
        1e-4 of a random residual, also 1e-5, with ten times the fill; the better is taken, as the report says.
    condest : a row and column is deferred to the next level where its estimated norm in the inverse factors is larger.
        float("inf"): only bad pivots are deferred. Small: more levels, safer factors.
    fill : entries that a row of U or a column of L may have, relative to the mean row of the matrix of its level.
        float("inf"): no limit. None: 10; 100 with the smaller drop_tol of None.
    ordering : of each level: "amd" (approximate minimum degree; meshes of 100,000 rows or more are cut by level sets
        first), which "auto" is; "mmd" (minimum degree of SciPy's SuperLU), "nd" (nested dissection, needs pymetis),
        "rcm", or None.
    matching : permute the columns so that the product of the diagonal is the largest that can be, and scale by its dual
        variables, so that the diagonal is 1 and nothing is larger. Without it rows and columns are equilibrated.
    symmetric : make a symmetric (Hermitian, complex symmetric) M with 1x1 and 2x2 pivots for an A that is, as `minres`,
        `sqmr` and `cg` need it. None: if A is; True: an error if it is not.
    definite : take |D| for D, so that M is Hermitian positive definite where A is Hermitian and indefinite, as `minres`
        and `cg` need it: eigenvalues of A M^-1 near 1 and -1 (Gill, Murray, Ponceleon, Saunders 1992). An error where A
        is not Hermitian.
    parts : 1: threads factor subtrees of the elimination tree of each level at the same time, and then what lies above
        them; the order is that of one thread. More: as many parts of A, found by nested dissection, are factored at the
        same time, and what couples them is left to the next level (needs pymetis). M depends on it, not on the number
        of threads.
    form : "crout": rows one after the other (Li, Saad, Chow 2003), on the CPU. "independent": as many pivots at a time
        as are not coupled (Saad 1996), for an A on a GPU, there; pivots are of one row. "auto": this where A is on a
        GPU, has 30,000 rows and `ordering` and `parts` are not given, but for levels that need pivots of two rows;
        else "crout".
    dense_size : what is left is factored by LAPACK once it has no more rows than this, or is a quarter full.
    levels : at most this many, the last one being LAPACK's, which is not given more than 6000 rows.
    low_memory : keep F and G, which are parts of A, and apply M by equation (11), with two solves each with L_B and
        U_B a level. Else L_G and U_F are kept, which have more entries, for one solve each: equations (6) to (8).
        None: on the CPU, but not on a GPU, where a solve takes its time however few entries it has.
    shift, triangular, precision : as in ILU0.
    Cost: of "crout", on the CPU, the matching on one thread, as is the ordering of less than 100,000 rows, the rest on
    all; of "independent", some hundred sparse products on the GPU, and the matching on the host. To apply it: per level
    two solves each with L_B and with U_B, and a product each with G and F.
    `update` keeps the order of the first level.
    """

    name = "multilevel"

    def factor(self, A: Any) -> MultilevelFactors:
        """Factor A (n, n), anything that `finelu.as_csr` takes; diagonal entries may be missing. A is not written.

        Raises StructurallySingular (a MatrixError) where no permutation fills the diagonal, ZeroPivot where A is
        singular.
        """
        return MultilevelFactors(self, matrix_of(self, A))
