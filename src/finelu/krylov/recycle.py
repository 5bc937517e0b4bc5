"""A space of a few vectors that one solve leaves for the next, whose A and b have changed a little.

Sources: Y. Saad, M. Yeung, J. Erhel, F. Guyomarc'h: A deflated version of the conjugate gradient algorithm, 2000;
M. L. Parks, E. de Sturler, G. Mackey, D. D. Johnson, S. Maiti: Recycling Krylov subspaces for sequences of linear
systems, 2006.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from finelu.device import namespace, on_gpu, to_host
from finelu.errors import MatrixError, ParameterError
from finelu.krylov.block import RANK, lengths, times
from finelu.matrix.vectors import as_dtype, norm
from finelu.threads import one_blas_thread
from finelu.validation import count, flag

MOST = 10  # vectors where `k` is not given
DIRECTIONS = 4  # times k: search directions of a solve from which the vectors are renewed, where not given
PASSES = 3  # of the orthonormalization of images: each one leaves the square of the condition that it finds
ROUNDINGS = 10  # times eps ||A|| ||w||, up to which ||A w|| is rounding
LEFT = 1000  # roundings of ||w||, up to which w without its part along null vectors is rounding
SOUND = 1e4  # condition of the Gram matrix up to which one pass is enough


class RecycledSpace:
    """Vectors for `recycle=` of `cg` and `gmres`: what slowed down one solve is kept out of the iterations of the next.

    k : the most vectors.
    directions : the search directions of a solve with `cg` from which the vectors are renewed after it; 4 k if None.
        They are kept until its end.
    renew : False: solves use the vectors and leave the space of those that they do not drop as it is.
    W : (n, m) the first vectors, or None: the first solve begins without.

    W (n, m) : the vectors, m <= k, or None; each solve makes them anew for its A.
    image (n, m) : A W for the A of the last solve; None where that has made W anew since, as `cg` does at its end.
    products, solves : how many products with A, and with M, were formed for the space itself so far.

    A solve forms A W first (m products with A, and another for an estimate of ||A||), and makes W orthonormal:
    W^H A W = I in `cg`, and (A W)^H A W = I in `gmres`. Vectors that depend on the others up to rounding, or that A
    takes to rounding, are dropped; all are, if A W has NaN or Inf. With `nullspace` the vectors lose their part along
    the null vectors. Its iterations cost 4 n m operations more each, in `cg` another 4 n m every 20 of them, and each
    cycle costs a product with A. With `renew`, its end costs m products with M and about 2 n k (m + directions)
    operations in `cg`. Memory: 2 n m, and n directions until the end.
    If a solve fails with the vectors, or `cg` takes 1.5 times as long for a decade of the residual as the last time
    that it had none, it goes on without them, and drops them with `renew` if that leads further.
    A space belongs to one sequence of systems: of one size, on one device. It may be used with any M. Solves change it
    without a lock: solves in several threads at once need a space each.
    """

    def __init__(self, k: int = MOST, *, directions: int | None = None, renew: bool = True, W: Any = None):
        self.k = count("k", k, 1)
        self.directions = DIRECTIONS * self.k if directions is None else count("directions", directions, 1)
        flag("renew", renew)
        self.renew = renew
        self.image: Any = None
        self.origin: Any = None  # of `gmres`: W = M^-1 origin, for the M with which W was found
        self.factor = 1.0  # that of the A of the last solve, as `Operator` has it
        self.length: float | None = None  # an estimate of its norm
        self.follows = False  # whether the image is that of the A of the next solve
        self.usual = np.inf  # iterations for a decade, in the last solve by `cg` without vectors that was not cut short
        self.products = self.solves = 0
        if W is not None and (getattr(W, "ndim", 0) != 2 or W.dtype.kind not in "fc" or not W.shape[1]):
            raise MatrixError(f"W has shape {np.shape(W)}; an array (n, m) of numbers is needed.")
        if W is not None and not bool(namespace(W).isfinite(W).all()):
            raise MatrixError("W holds NaN or Inf; find where they come from.")
        self.W: Any = None if W is None else _by_columns(W[:, : self.k])

    @property
    def size(self) -> int:
        """The number of vectors."""
        return 0 if self.W is None else int(self.W.shape[1])

    def __repr__(self) -> str:
        n = 0 if self.W is None else self.W.shape[0]
        return f"RecycledSpace(k={self.k}, directions={self.directions}; {self.size} vectors, n={n})"

    def drop(self) -> None:
        """Forget the vectors."""
        self.W = self.image = self.origin = None
        self.follows = False

    def shift(self, change: complex) -> None:
        """Take the next A as that of the last solve plus `change` times the identity, which needs no product: A W moves
        by `change` W, and is made orthonormal here.

        Only after `gmres`, which leaves A W; without that, and without vectors, the next solve forms it as ever. So it
        does where rounding may have taken half of the digits of A w of some w: where shifts were large, and are so no
        more.
        """
        if self.W is None or self.image is None:
            return
        change = complex(change)
        dtype = self.W.dtype if change.imag == 0 else np.result_type(self.W.dtype, np.complex64)
        W, image = (as_dtype(v, dtype) for v in (self.W, self.image))
        image = image / self.factor + W * dtype.type(change if dtype.kind == "c" else change.real)
        sizes = lengths(image) / lengths(W)
        length = max(float(sizes.max()), 0.0 if self.length is None else self.length / self.factor + abs(change))
        if not np.sqrt(np.finfo(sizes.dtype).eps) * length <= sizes.min():  # too much has cancelled, here or before
            self.image, self.follows = None, False
            return
        self._keep(W, image, self.origin if self.origin is None else as_dtype(self.origin, dtype), length, energy=False)
        self.follows, self.factor = self.W is not None, 1.0

    def leave_out(self, V: Any) -> None:
        """Take the part along the orthonormal columns of V (n, k), which are null vectors of A, out of the vectors."""
        if self.W is None or self.W.shape[0] != V.shape[0] or on_gpu(self.W) != on_gpu(V):
            return  # `fit` says what is wrong
        before, W = lengths(self.W), self.W
        for _ in range(2):  # as the first may leave the rounding of long sums
            W = W - V @ (V.conj().T @ W)
        some = np.flatnonzero(lengths(W) > LEFT * float(np.finfo(V.dtype).eps) * before)
        origin, kept = self.origin, _by_columns(W[:, some])
        self.drop()
        if some.size:
            self.W, self.origin = kept, origin if origin is None else _by_columns(origin[:, some])

    def fit(self, A: Any, like: Any, *, energy: bool) -> bool:
        """Form A W, and make W independent: W^H A W = I (energy), or (A W)^H A W = I.

        A : the operator.  like : a vector of the system.
        Returns whether W^H A W is positive definite up to rounding, True without energy. Raises MatrixError if the
        vectors are of another size or device, or are complex where the system is real.
        """
        follows, self.follows = self.follows, False
        before, self.factor = self.factor, A.factor
        if self.W is None:
            return True
        if self.W.shape[0] != like.size:
            raise MatrixError(
                f"recycle holds vectors of length {self.W.shape[0]}, but the system has {like.size} rows; use a new "
                "RecycledSpace, or drop() the vectors."
            )
        if on_gpu(self.W) != on_gpu(like):
            raise MatrixError("recycle holds vectors on another device than b; use a RecycledSpace for each.")
        if self.W.dtype.kind == "c" and like.dtype.kind != "c":
            raise MatrixError("recycle holds complex vectors, but the system is real; use a new RecycledSpace.")
        W, origin = (v if v is None else as_dtype(v, like.dtype) for v in (self.W, self.origin))
        if follows and not energy:
            if (unit := before / A.factor) != 1:  # then A W stays what it is
                W, origin = W * unit, origin if origin is None else origin * unit
                self.length = None if self.length is None else self.length / unit
            self.W, self.image, self.origin = W, as_dtype(self.image, like.dtype), origin
            return True
        image = times(A, W)
        self.products += self.size + 1
        if not energy and before != A.factor and _is_off(image, before / A.factor):
            W = W * like.dtype.type(
                before / A.factor
            )  # A stayed and b alone has another size; M has the inverse factor
            image = times(A, W)
            self.products += self.size
        return self._keep(W, image, origin, _length(A, like), energy=energy)

    def _keep(self, W: Any, image: Any, origin: Any, length: float, *, energy: bool) -> bool:
        """Make W orthonormal as `fit` does, and keep it.

        length : an estimate of ||A||, never above it; after shifts, of the sum of ||A|| as it was when A W was formed
            and of |change| of each, which bounds the rounding in A W.
        """
        rounding, definite = ROUNDINGS * float(np.finfo(W.dtype).eps) * length, True
        for _ in range(PASSES):
            some, T, sound, definite = _independent(W, image, energy, rounding)
            if not definite:
                return False
            W, image, origin = (v if v is None else combined(v, T, some) for v in (W, image, origin))
            if sound:
                break
        self.drop()
        self.length = length
        if W.shape[1]:
            self.W, self.image = _by_columns(W), _by_columns(image)
            self.origin = origin if origin is None else _by_columns(origin)
        return True


def _is_off(image: Any, ratio: float) -> bool:
    """Whether A W has a size that vectors times `ratio` would bring nearer to 1, where an orthonormal A W is kept."""
    most = float(lengths(image).max())
    return not (0 < most < math.inf and abs(math.log(most)) <= abs(math.log(ratio)) / 2)


def _length(A: Any, like: Any) -> float:
    """An estimate of ||A||, never above it: the length of A v for a random v of length 1; 0 if that overflows."""
    v = namespace(like).asarray(np.random.default_rng(0).standard_normal(like.size).astype(like.dtype))
    size = norm(A @ v) / norm(v)
    return size if np.isfinite(size) else 0.0


def _independent(W: Any, image: Any, energy: bool, rounding: float) -> tuple[Any, Any, bool, bool]:
    """(columns, T, whether one pass is enough, whether no eigenvalue is negative), with which V[:, columns] @ T for
    V = W and V = image has W^H image = 1, with energy, or image^H image = 1. T has no columns if nothing is left.

    rounding : the most that the rounding of the image of a vector of length 1 may be.
    """
    xp = namespace(W)
    with one_blas_thread():
        gram = to_host((W if energy else image).conj().T @ image)
    gram = (gram + gram.conj().T) / 2
    sizes, own = gram.diagonal().real, _lengths(W)
    error = rounding * own**2 if energy else (rounding * own) ** 2
    some, definite = np.flatnonzero(sizes > error), not (energy and (sizes < -error).any())
    if not (np.isfinite(gram).all() and some.size):
        return some, xp.zeros((some.size, 0), W.dtype), True, definite
    scale = 1 / np.sqrt(sizes[some])
    values, vectors = np.linalg.eigh(gram[np.ix_(some, some)] * scale * scale[:, None])
    own = abs(vectors).T @ (scale * own[some])  # at most the length of each combination, before parts of it cancel
    error = rounding * own**2 if energy else (rounding * own) ** 2
    least = np.maximum(error, RANK * np.finfo(values.dtype).eps * values[-1])
    definite = definite and not (energy and (values < -least).any())
    kept = values > least
    T = xp.asarray((scale[:, None] * vectors[:, kept] / np.sqrt(values[kept])).astype(W.dtype))
    return some, T, bool(kept[0] and values[0] * SOUND > values[-1]), definite


def _lengths(W: Any) -> Any:
    """The lengths (m,) of the vectors W (n, m), in double precision, also where their squares over- or underflow."""
    found = lengths(W).astype(np.float64)
    if np.isfinite(found).all() and (found > np.sqrt(float(np.finfo(W.dtype).tiny))).all():
        return found
    unit = float(abs(W).max())
    if not 0 < unit < np.inf:
        return found
    unit = float(np.ldexp(1.0, int(np.frexp(unit)[1])))
    return lengths(W / W.dtype.type(unit)).astype(np.float64) * unit


def combined(V: Any, T: Any, some: Any = None) -> Any:
    """V[:, some] @ T by columns; some : None for all.  V (n, k) by columns is read as it lies."""
    V = V if some is None or some.size == V.shape[1] else V[:, some]
    return (T.T @ V.T).T


def _by_columns(V: Any) -> Any:
    return namespace(V).asfortranarray(V)


def space_asked(recycle: Any) -> RecycledSpace | None:
    """The `recycle` of a caller. Raises ParameterError for anything but a RecycledSpace or None."""
    if recycle is None or isinstance(recycle, RecycledSpace):
        return recycle
    raise ParameterError(f"recycle is a {type(recycle).__name__}; a finelu.RecycledSpace is needed, or None.")
