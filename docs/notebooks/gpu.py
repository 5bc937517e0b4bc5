# %% [markdown]
# # On a GPU, executed
#
# Where the arrays are on the GPU, the work runs there. So copy A and b once, and keep the vectors there. A is a matrix
# of `cupyx.scipy.sparse`, b a CuPy array.

# %%
import os
import time

import cupy
import cupyx.scipy.sparse as csp
import matplotlib.pyplot as plt
import numpy as np

import finelu as fl
from finelu import triangular

gpu = cupy.cuda.runtime.getDeviceProperties(0)
print(
    f"{gpu['name'].decode()}, CuPy {cupy.__version__},"
    f" {len(os.sched_getaffinity(0))} cores of the CPU"
)

# %% [markdown]
# One call solves. The first call of a process loads the kernels, or compiles them.

# %%
A = csp.csr_matrix(fl.gallery.problem("poisson7:100"))  # a million unknowns
b = cupy.ones(A.shape[0])
fl.solve(A, b)
solution = fl.solve(A, b, rtol=1e-8)
print(type(solution.x))
print(solution.explain())

# %% [markdown]
# From which size on does the GPU pay? The same call, with the arrays on the CPU and on the GPU. Each time is that of
# the fastest of three calls, from A and b to x.


# %%
def seconds(A, b):
    fl.solve(A, b)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        assert fl.solve(A, b).converged
        times.append(time.perf_counter() - start)
    return min(times)


sizes, on_cpu, on_gpu = [], [], []
for n in (10, 16, 25, 40, 63, 100):
    S = fl.gallery.problem(f"poisson7:{n}")
    sizes.append(S.shape[0])
    on_cpu.append(seconds(S, np.ones(S.shape[0])))
    on_gpu.append(seconds(csp.csr_matrix(S), cupy.ones(S.shape[0])))
    print(
        f"{sizes[-1]:9,} unknowns: CPU {1e3 * on_cpu[-1]:7.2f} ms,"
        f" GPU {1e3 * on_gpu[-1]:6.2f} ms"
    )

figure, axes = plt.subplots()
axes.loglog(sizes, np.multiply(on_cpu, 1e3), "o-", label="CPU")
axes.loglog(sizes, np.multiply(on_gpu, 1e3), "s-", label="GPU")
axes.set(title="From A and b to x, Laplacian in a cube", xlabel="unknowns", ylabel="ms")
axes.legend()

# %% [markdown]
# Your own choice works as on the CPU: `factor` makes factors, which stay on the GPU, and a Krylov method takes them as
# `M`. `update` computes the factors of a matrix with other values at the same places.


# %%
def timed(call, *arguments, **options):
    call(*arguments, **options)
    cupy.cuda.Device().synchronize()  # work is queued: wait until it is done
    start = time.perf_counter()
    result = call(*arguments, **options)
    cupy.cuda.Device().synchronize()
    return result, 1e3 * (time.perf_counter() - start)


figure, axes = plt.subplots()
for recipe in (fl.Jacobi(), fl.IC0(), fl.Schwarz()):
    F, setup = timed(recipe.factor, A)
    _, update = timed(F.update, A)
    with_it, solve = timed(fl.cg, A, b, M=F, rtol=1e-8)
    assert with_it.converged
    print(
        f"{recipe!r:10} factor {setup:5.1f} ms, update {update:5.2f} ms,"
        f" {with_it.iterations:3} iterations in {solve:5.1f} ms"
    )
    axes.semilogy(
        with_it.history / with_it.history[0],
        label=f"{recipe!r}: {with_it.iterations} iterations",
    )
axes.set(
    title="Conjugate gradients on the GPU",
    xlabel="iteration",
    ylabel="residual, relative to the first",
)
axes.xaxis.get_major_locator().set_params(integer=True)
axes.legend()

# %% [markdown]
# When does the GPU lose? A triangular solve is a chain of levels: the rows of a level can be solved together, but the
# levels only one after the other. In a tridiagonal matrix each row is a level of its own.

# %%
for name in ("tridiagonal:20000", "poisson7:60"):
    S = fl.gallery.problem(name)
    both = []
    for matrix, vector in (
        (S, np.ones(S.shape[0])),
        (csp.csr_matrix(S), cupy.ones(S.shape[0])),
    ):
        F = fl.ILU0().factor(matrix)
        both.append(timed(F.solve, vector)[1])
    levels, _ = triangular.levels(S)  # of the lower triangle, of the upper
    print(
        f"{name}: {S.shape[0] / levels:.0f} rows a level; F.solve takes"
        f" {both[0]:.2f} ms on the CPU, {both[1]:.2f} ms on the GPU"
    )

# %% [markdown]
# Time steps: a `Sequence` keeps its factors on the GPU. Heat spreads in a plate, u comes back for the picture alone.

# %%
side = 500
K = csp.csr_matrix(fl.gallery.problem(f"poisson5:{side}"))
one = csp.identity(side * side, format="csr")
y, x = cupy.divmod(cupy.arange(side * side), side)
u = cupy.exp(-((x - 150) ** 2 + (y - 300) ** 2) / 2000.0) + cupy.exp(
    -((x - 350) ** 2 + (y - 150) ** 2) / 500.0
)
sequence, dt, pictures = fl.Sequence(rtol=1e-8), 20.0, [u.get()]
start = time.perf_counter()
for step in range(20):
    solution = sequence.step(one + dt * K, u)
    assert solution.converged
    u, dt = solution.x, 1.2 * dt
    if step in (6, 12, 19):
        pictures.append(u.get())
print(
    f"20 steps of {side * side:,} unknowns in {time.perf_counter() - start:.2f} s,"
    " the first one included"
)
print(
    ", ".join(
        f"{word}: {sequence.decisions.count(word)}"
        for word in dict.fromkeys(sequence.decisions)
    )
)

figure, axes = plt.subplots(1, 4, figsize=(9, 2.5))
for axis, field, after in zip(axes, pictures, (0, 7, 13, 20)):
    axis.imshow(field.reshape(side, side)[::4, ::4], cmap="inferno", origin="lower")
    axis.set(title=f"after {after} steps", xticks=[], yticks=[])

# %% [markdown]
# [GPU](../gpu.md) has the devices of each recipe, and tables of where the GPU wins and loses.
