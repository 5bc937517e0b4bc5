"""Public calls, and which of their kernels a wheel does not carry: python carried_calls.py DTYPE [WORDS].
With `pieces` as the only word: the kernels with arrays of numbers that the pieces of work run, one a line.

First the pieces of work run for which tools/build_cpu_kernels.py compiles; then public calls. Each kernel that a call
took and no piece did is printed in a line, with the types of its arguments.
long : with int64 indices, in addition to the code for int32, which a wheel always carries.  single : also factors in
single precision for systems in double precision.  blocks : block matrices of all sizes of blocks, not of three rows
alone.
"""

import gc
import sys
from contextlib import nullcontext
from dataclasses import fields

import numpy as np
import scipy.sparse as sp

import finelu as fl
from finelu import gallery, krylov, preconditioners
from finelu.kernels.cpu.runtime.jit import Cache
from finelu.warmup import long_indices, pieces

# Values of parameters that lead to other kernels than the defaults, where a recipe has such a parameter.
OTHERS = {
    "triangular": ["levels", "jacobi", "isai"],
    "variant": ["levels"],
    "ordering": ["rcm", "amd"],
    "form": ["crout", "independent", "row"],
    "sweep": ["synchronous", "asynchronous"],
    "select": ["exact"],
    "initial": ["scaled"],
    "pivots": ["old"],
    "shift": [1e-3],
    "matching": [True],
    "partition": ["natural"],
    "coarse": [None],
    "combine": ["additive"],
}
BLOCK = 3  # rows


def known():
    caches = [each for each in gc.get_objects() if isinstance(each, Cache)]
    return {(cache.store.name, signature) for cache in caches for signature in cache.known}


def settings_of(kind):
    """The keywords of a recipe: none, and one alone for each of the other values that it takes."""
    taken = {field.name for field in fields(kind)}
    yield {}
    for name, values in OTHERS.items():
        for value in values if name in taken else []:
            yield {name: value}


def factors(kind, given, A):
    """Factors by this recipe, or None where it does not take the parameter's value."""
    size = {"block_size": BLOCK} if kind.name in ("block_ilu0", "cpr") else {}
    try:
        return kind(**size, **given).factor(A)
    except fl.errors.FineluError:
        return None


def solve_systems(dtype, rng):
    spd, general = gallery.poisson5(15), gallery.convection_diffusion(6)
    systems = [spd, general, gallery.stokes(9), gallery.kkt(60, 20), gallery.tridiagonal(300), gallery.arrow(200),
               gallery.poisson27(6), gallery.random_dominant(250), gallery.poisson7(20), spd.todense(),
               spd.tobsr((BLOCK, BLOCK))]  # fmt: skip
    for A in systems:
        A = A.astype(dtype)
        b = rng.standard_normal(A.shape[0]).astype(dtype)
        fl.solve(A, b, rtol=1e-4)
        fl.solve(A, np.stack([b, b], axis=1), rtol=1e-4)
        fl.solve(A, b, x0=0.5 * b, rtol=1e-3, certify=True)
        fl.properties.properties(A)


def factor_and_iterate(dtype, rng):
    spd, general = gallery.poisson5(15).astype(dtype), gallery.convection_diffusion(6).astype(dtype)
    for kind in preconditioners.OWN:
        for A in [spd] if kind.hermitian else [spd, general]:
            b = rng.standard_normal(A.shape[0]).astype(dtype)
            for given in settings_of(kind):
                F = factors(kind, given, A)
                if F is None:
                    continue
                for trans in "NTH":
                    F.solve(b, trans), F.solve(np.stack([b, b, b], axis=1), trans)
                F.update(A)
                F @ b
            F = factors(kind, {}, A)
            for method in krylov.OWN:
                if not method.needs.startswith(("spd", "hermitian", "symmetric")) or A is spd:
                    method.solve(A, b, maxiter=8, M=F if method.name not in ("cgs",) else None)


def solve_in_sequence(dtype):
    A = gallery.convection_diffusion(6)
    sequence = fl.Sequence()
    for shift in (0, 0.1, 0.2):
        shifted = (A + shift * sp.identity(A.shape[0], format="csr")).astype(dtype)
        sequence.step(shifted, np.ones(A.shape[0], dtype))


def use_blocks(dtype, sizes):
    for size in sizes:
        A = sp.bsr_matrix(sp.kron(gallery.poisson5(4), np.eye(size)).astype(dtype), blocksize=(size, size))
        b = np.ones(A.shape[0], dtype)
        for recipe in (fl.BlockILU0(), fl.BlockJacobi()):
            F = recipe.factor(fl.BlockMatrix.from_bsr(A)).update(fl.BlockMatrix.from_bsr(A))
            for trans in "NTH":
                F.solve(b, trans)


def use_batches(dtype, rng):
    A = gallery.poisson5(9)
    values = (A.data * (1 + 0.01 * rng.standard_normal((9, A.nnz)))).astype(dtype)
    batch, R = fl.Batch(A, values), np.ones((9, A.shape[0]), dtype)
    for b in (R, R[0]):
        for rtol in (1e-3, 10 * np.finfo(dtype).eps):
            fl.solve(batch, b, rtol, verbose=False)
        for recipe in (fl.Jacobi(), fl.BlockJacobi(), fl.ILU0(), fl.ILUK(), fl.SparseLU()):
            F = recipe.factor(batch).update(values)
            F.solve(b)
            for method in (fl.cg, fl.bicgstab, fl.gmres):
                method(batch, b, M=F, rtol=1e-3), method(batch, b, rtol=1e-2)


def use_tools(dtype):
    """Orders, scalings, triangular solves, parts and choices, as programs call them."""
    A = fl.as_csr(gallery.convection_diffusion(6).astype(dtype))
    for order in (fl.ordering.rcm, fl.ordering.minimum_degree, fl.ordering.amd):
        order(A)
    fl.scaling.matching(A), fl.scaling.equilibrate(A)
    fl.partition.partition(A, 20)
    fl.selection.kth_smallest(abs(A.data), 5), fl.selection.threshold(A.data, 5)
    lower = sp.tril(A.tosparse(), format="csr")
    fl.triangular.TriangularSolver(lower).solve(np.ones(A.n, dtype))
    for T, is_lower in ((lower, True), (lower.T.tocsc(), False)):
        for is_unit in (False, True):
            fl.spsolve_triangular(T, np.ones((A.n, 2), dtype), lower=is_lower, unit_diagonal=is_unit)
    large = gallery.convection_diffusion(13).astype(dtype)  # more rows than KLU is tried for at once
    for S in (large, large.tocsc()):
        fl.spsolve(S, np.ones(large.shape[0], dtype))
        fl.splu(S).solve(np.ones((large.shape[0], 2), dtype))
    wide = sp.csr_matrix(A.tosparse()[:, : A.n // 2])
    for S in (wide, wide.T.tocsr(), A.tosparse()):
        b = np.ones(S.shape[0], dtype)
        fl.lstsq(S, b, rtol=1e-3), fl.lstsq(S, b, 0.1, rtol=1e-3)
        for method in (fl.lsmr, fl.lsqr, fl.cgls):
            method(S, b, M=fl.ICNE().factor(S))
    fl.lstsq(sp.csr_matrix(sp.vstack([large, large])), np.ones(2 * large.shape[0], dtype), rtol=1e-3)
    grid = gallery.poisson5(15)
    ring = sp.csr_matrix(grid - sp.diags(np.asarray(grid.sum(axis=1)).ravel())).astype(dtype)  # which takes 1 to 0
    for method in (fl.solve, fl.cg, fl.minres, fl.gmres):
        method(ring, np.arange(ring.shape[0]).astype(dtype), rtol=1e-3, nullspace="constant")
    if dtype != np.dtype("float32"):
        fl.spilu(A.tosparse().tocsc()).solve(np.ones(A.n, dtype))


def names_of(dtype):
    with np.errstate(all="ignore"):
        for _, piece in pieces(dtype, [BLOCK]):
            piece()
    numbers = "array(float", "array(complex"
    return sorted({name for name, signature in known() if any(each in signature for each in numbers)})


def main(name, *words):
    if words == ("pieces",):
        print("\n".join(names_of(name)))
        return
    dtype, rng = np.dtype(name), np.random.default_rng(0)
    wheel = {name, np.result_type(dtype, float).name}
    if "single" in words:
        wheel |= {"complex64" if dtype.kind == "c" else "float32"}
        OTHERS["precision"] = ["float32"]
    carried, used = (range(1, 10), range(1, 13)) if "blocks" in words else ([BLOCK], [BLOCK])
    indices = long_indices if "long" in words else nullcontext
    with np.errstate(all="ignore"):
        for around in {nullcontext, indices}:
            for precision in wheel:
                with around():
                    for _, piece in pieces(precision, carried):
                        piece()
    before = known()
    with indices(), np.errstate(all="ignore"):
        solve_systems(dtype, rng)
        factor_and_iterate(dtype, rng)
        solve_in_sequence(dtype)
        use_blocks(dtype, used)
        use_batches(dtype, rng)
        use_tools(dtype)
    for kernel, signature in sorted(known() - before):
        print(kernel, signature)


main(*sys.argv[1:])
