"""The coarse matrix of a Schwarz method, solved by Schwarz again: levels, each with a coarse matrix of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from finelu.device import namespace, on_gpu, sparse_module, to_host
from finelu.errors import MatrixError
from finelu.factors.base import trial_vector
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR, Couplings
from finelu.matrix import full_csr
from finelu.ordering import OrderingJob
from finelu.partition import Partition, partition
from finelu.preconditioners.polynomial import chebyshev
from finelu.preconditioners.schwarz.spectrum import spectrum, steps_for
from finelu.threads import get_num_threads

SIZE, NODES = 64, 16  # rows of a part of a coarse matrix; parts of the level above that it holds at least
FEWEST, PARTS = 512, 4  # a coarse matrix with levels of its own has more rows, and at least these parts
CLOSE, LEFT = 3, 0.1  # times as many steps where cg begins; part of the coarse residual that these may leave
# The rows and the entries a row of complete factors up to which these take less time than a solve on levels: the coarse
# matrix of 15,625 parts has factors of 45 entries a row in the plane, and a solve takes 0.9 instead of 4.4 ms; in space
# of 330, and 6.5 instead of 3.7 ms.
FACTORED, SPARSE = 32_768, 100
# Threads from which the coarse matrix of a grid in space, at least THICK nodes thick, has up to MOST_IN_SPACE vectors.
SEVERAL, MOST_IN_SPACE, THICK = 4, 4096, 16


class CoarseLevels:
    """E^-1 g, nearly, by factors of E that are those of a Schwarz method; a linear operation, the same in each call.

    recipe : a Schwarz recipe for E.  known : an earlier solver, whose parts are kept if E has the same pattern.
    E : a CSR of the dtype of g.  nodes : the matrix whose partition is that of E's rows, see `on_levels`.
    near_nullspace : (K, m) for E, or None for the constant.
    dropped (K,) : vectors, on the host, whose rows of E are those of the identity: the result is 0 there, whatever g.
    definite : whether E is Hermitian positive definite. E^-1 is then replaced by steps of Chebyshev with the factors M
        of E, as many as `steps_for` says if the spectrum of M^-1 E lies in the interval of `_spectrum`, which is an
        estimate. The number of steps is odd: the operation is (1 - p(M^-1 E)) E^-1, Hermitian as M^-1 is, with
        a polynomial p of odd degree that is at most 1 in magnitude between 0 and the end of the interval, 1 only at 0,
        and negative beyond it. So 1 - p is positive wherever the spectrum is, and the operation is definite as M^-1
        is, whatever the estimate; a value beyond the interval costs cg iterations alone. Else it is replaced by M^-1
        alone.
    Raises ZeroPivot if a part of E has no factors, MatrixError if the spectrum of M^-1 E is not positive or too wide.
    """

    def __init__(
        self,
        recipe: Any,
        E: CSR,
        nodes: CSR,
        near_nullspace: Any,
        dropped: Any,
        definite: bool,
        known: CoarseLevels | None = None,
    ):
        self.definite = definite
        kept = (~dropped).astype(E.data.real.dtype)
        self._kept = namespace(E.data).asarray(kept) if dropped.any() else None
        if known is not None and known.factors.pattern.same_pattern(E):
            self.factors: Any = known.factors.update(E)
        else:
            m = E.n // nodes.n
            parts = namespace(E.data).repeat(partition(nodes, nodes_of_part(m), "auto").parts, m)
            self.factors = replace(recipe, parts=parts, near_nullspace=near_nullspace).factor(E)
        self._E, self._product = E, kernels_for(E.data).products.Product(E)
        self._deflated = self.factors.deflated if self.factors.coarse.levels is None else None
        self.steps = 1
        if definite:
            self._middle, self._half = self._spectrum()
            self.steps = steps_for(self._middle, self._half)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_product": None, "_deflated": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._product = kernels_for(self._E.data).products.Product(self._E)
        self._deflated = self.factors.deflated if self.factors.coarse.levels is None else None

    def __call__(self, g: Any, trans: str) -> Any:
        """E^-1 g, or with a transpose."""
        g = self._of_kept(g)
        if self.definite:
            return self._of_kept(self._chebyshev(g, self.steps))
        x = namespace(g).empty_like(g)
        self.factors._apply_one(g, trans, x)
        return self._of_kept(x)

    def closely(self, g: Any) -> tuple[Any, float]:
        """E^-1 g, and the part of the norm of g that its residual may have."""
        if not self.definite:
            return self(g, "N"), 0.0
        return self._of_kept(self._chebyshev(self._of_kept(g), CLOSE * self.steps)), LEFT

    def with_dot(self, g: Any, v: Any, dots: Any, total: Any) -> Any:
        """E^-1 g, and total[0] = v^H E^-1 g + the sum of dots."""
        q, xp, dot = self(g, "N"), namespace(g), kernels_for(g).vectors.dot
        rest = xp.empty_like(total)
        dot(v, q, total)
        dot(xp.ones_like(dots), dots, rest)
        total += rest
        return q

    def _of_kept(self, g: Any) -> Any:
        """g with zeros for the dropped vectors."""
        return g if self._kept is None else g * self._kept

    def _start(self, g: Any) -> tuple[Any, Any]:
        """x and g - E x, without a component in the next coarse space if that is solved exactly."""
        x = namespace(g).zeros_like(g)
        if self._deflated is None:
            return x, g.copy()
        coarse = self.factors.coarse
        coarse.prolong(coarse.solve(coarse.restrict(g)), x)
        return x, g - self._product(x)

    def _times_M(self, r: Any) -> Any:
        return self.factors._one(r, "N") if self._deflated is None else self._deflated @ r

    def _chebyshev(self, g: Any, steps: int) -> Any:
        x, r = self._start(g)
        return chebyshev(self._product, self._times_M, x, r, self._middle, self._half, steps)

    def _spectrum(self) -> tuple[float, float]:
        """The middle and half the width of an interval for the spectrum of M^-1 E, outside of the next coarse space if
        that is solved exactly.

        The search begins with E D^-1/2 v for a random v and the diagonal D of E, which is in the range of E. Rows of
        any scale have the same weight in it: the numbers are those of D^-1/2 E D^-1/2, if M^-1 scales as E^-1 does.
        """
        E = self._E
        weights = 1 / namespace(E.data).sqrt(E.data[E.diag].real)
        _, r = self._start(self._product(trial_vector(E) * weights))
        return spectrum(self._product, self._times_M, r)


def has_levels(nodes: int, m: int) -> bool:
    """Whether the coarse matrix of m vectors in each of the parts `nodes` is large enough for levels of its own."""
    return nodes * m > FEWEST and nodes >= PARTS * nodes_of_part(m)


def size_in_space(A: CSR, found: Partition, largest: int) -> int | None:
    """The rows of larger bricks of a grid in space, with which several threads factor the coarse matrix in little time:
    on levels the steps are too short to be shared. None where the bricks that were found are as good.

    largest : the most rows of a brick; where there would be more, the coarse matrix is solved on levels.
    """
    if on_gpu(A.data) or found.shape is None or min(found.shape) < THICK or get_num_threads() < SEVERAL:
        return None
    size = -(-A.n // MOST_IN_SPACE)
    return size if found.count > MOST_IN_SPACE and size <= largest else None


def is_factored_sooner(E: CSR) -> bool:
    """Whether a solve with complete factors of E is expected to take less time than one on levels; False on a GPU.

    Cost: an ordering by minimum degree, kept for the next E of the same pattern.
    """
    few = not on_gpu(E.data) and E.n <= FACTORED
    return few and OrderingJob(E, aside=False).found()[2].nnz <= SPARSE * E.n


def nodes_of_part(m: int) -> int:
    """The number of parts, with m vectors each, that a part of their coarse matrix holds."""
    return max(SIZE // m, NODES)


def coefficients(coarse: Any, near_nullspace: Any) -> Any:
    """(K, m) : Z^H B for the near null space B (n, m), which Z spans: the same vectors in the basis Z."""
    B = near_nullspace.astype(coarse.Z.dtype, copy=False)
    xp, restrict = namespace(B), kernels_for(B).subdomains.restrict
    columns = (xp.ascontiguousarray(column) for column in B.T)
    return xp.stack([restrict(coarse.starts, coarse.rows, coarse.Z[coarse.rows], c, True) for c in columns], axis=1)


def no_vectors() -> MatrixError:
    """The error if no coarse vector remains."""
    return MatrixError(
        "nothing but rounding is left of the coarse matrix Z^H A Z; take coarse=None, or a near null space that A does "
        "not annihilate."
    )


def on_levels(
    blocks: Any, couplings: Couplings, adjoint: str | None, dtype: Any, definite: bool, rounding: Callable[[], Any]
) -> tuple[CSR, CSR, Any]:
    """E, the matrix of its nodes, and its dropped vectors.

    blocks (couplings, m, m) : of E.  adjoint : as `CoarseSpace` has it; E is made exactly equal to its own adjoint.
    definite : whether A is Hermitian with a positive diagonal.
    rounding : gives (K,), the energy of each vector that is only rounding.
    Returns E (K, K), of this dtype; nodes (K / m, K / m), E itself if m is 1, else real, with the magnitudes of the
    blocks; and a mask (K,), on the host, of the dropped vectors: those without an energy (if `definite`, a positive
    one), which A annihilates. Their rows and columns are those of the identity.
    Raises MatrixError if no vector remains, or if one without an energy is coupled to others.
    """
    xp, indices = namespace(blocks), kernels_for(blocks).indices
    count, m = couplings.starts.size - 1, blocks.shape[1]
    p = indices.rows_of_entries(couplings.starts, couplings.members.size)
    q = xp.empty_like(p)
    q[couplings.members] = indices.rows_of_entries(couplings.vector_starts, p.size)
    if adjoint is not None and bool((p[couplings.members] == q).all()) and bool((q[couplings.members] == p).all()):
        opposite = blocks[couplings.members].transpose(0, 2, 1)
        blocks = (blocks + (opposite.conj() if adjoint == "H" else opposite)) / 2
    E = _csr(couplings.starts, q, blocks.astype(dtype), count)
    sizes = E.diagonal()
    dropped = ~((sizes.real > 0) if definite else (sizes != 0))
    if bool(dropped.any()):
        _require_no_couplings(E, dropped, xp.sqrt(rounding()))
        if bool(dropped.all()):
            raise no_vectors()
        sparse = sparse_module(blocks)
        kept, ones = (sparse.diags(chosen.astype(dtype)).tocsr() for chosen in (~dropped, dropped))
        E = (kept @ E @ kept + ones).tocsr()
        E.sort_indices()
    E = full_csr(E.indptr, E.indices, E.data)
    if m == 1:
        return E, E, to_host(dropped)
    magnitudes = abs(blocks).sum(axis=(1, 2))
    nodes = _csr(couplings.starts, q, magnitudes.reshape(-1, 1, 1), count)
    if int((p == q).sum()) < count:
        nodes = (nodes + sparse_module(blocks).identity(count, format="csr")).tocsr()
        nodes.sort_indices()
    return E, full_csr(nodes.indptr, nodes.indices, nodes.data), to_host(dropped)


def _require_no_couplings(E: Any, dropped: Any, rounding: Any) -> None:
    """Raise MatrixError if E[i, j] of a dropped vector i is more than rounding[i] rounding[j]."""
    rows = kernels_for(E.data).indices.rows_of_entries(E.indptr, E.nnz)
    coupled = dropped[rows] & (rows != E.indices) & (abs(E.data) > rounding[rows] * rounding[E.indices])
    if bool(coupled.any()):
        raise MatrixError(
            f"the energy of vector {int(rows[coupled][0])} is not positive, but others are coupled to it; levels=2."
        )


def _csr(starts: Any, columns: Any, blocks: Any, count: int) -> Any:
    """The sparse matrix of blocks (len(columns), m, m) in `count` rows: row p has those from starts[p] on, in the
    ascending columns `columns`."""
    xp, m = namespace(blocks), blocks.shape[1]
    lengths = starts[1:] - starts[:-1]
    indptr = xp.zeros(count * m + 1, starts.dtype)
    indptr[1:] = xp.cumsum(xp.repeat(lengths * m, m))
    rows = kernels_for(blocks).indices.rows_of_entries(starts, columns.size)
    inside = xp.arange(columns.size, dtype=starts.dtype) - starts[rows]
    within = xp.arange(m, dtype=starts.dtype)
    first = indptr[(rows * m)[:, None] + within] + (inside * m)[:, None]  # of each row of a block
    places = first[:, :, None] + within
    indices, data = xp.empty(blocks.size, starts.dtype), xp.empty(blocks.size, blocks.dtype)
    indices[places] = (columns * m)[:, None, None] + within
    data[places] = blocks
    return sparse_module(blocks).csr_matrix((data, indices, indptr), shape=(count * m, count * m))
