# %% [markdown]
# # Preconditioners at work, executed
#
# A stronger preconditioner saves iterations, and costs more to make and to apply. Where is the least time? Convection
# and diffusion in a cube: A is not symmetric, so the method is `gmres`.

# %%
import time

import matplotlib.pyplot as plt
import numpy as np

import finelu as fl

A = fl.gallery.problem("convection_diffusion:30")
b = np.ones(A.shape[0])
recipes = [fl.Jacobi(), fl.ILU0(), fl.MILU0(), fl.ILUK(level=1), fl.ILUT(drop_tol=1e-2), fl.ILUT(drop_tol=1e-3)]

# %% [markdown]
# `factor` makes the factors; every method takes them as `M`. The first call of a recipe may compile its kernels, so each
# is timed after one that is not.

# %%
found = []
for recipe in recipes:
    for _ in range(2):
        start = time.perf_counter()
        F = recipe.factor(A)
        setup = time.perf_counter() - start
        start = time.perf_counter()
        solution = fl.gmres(A, b, M=F, rtol=1e-8)
        seconds = time.perf_counter() - start
    assert solution.converged
    found.append((recipe, F.nnz / A.nnz, setup, seconds, solution))
    print(f"{recipe!r:22} {F.nnz / A.nnz:4.1f} entries of A   set-up {1e3 * setup:6.1f} ms   "
          f"{solution.iterations:3} iterations {1e3 * seconds:6.1f} ms")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
for recipe, fill, setup, seconds, solution in found:
    left.semilogy(solution.history / solution.history[0], label=repr(recipe))
left.set(title="Residual", xlabel="iteration", ylabel="relative to the first")
names = [repr(recipe) for recipe, *_ in found]
right.barh(names, [1e3 * setup for _, _, setup, _, _ in found], label="set-up")
right.barh(names, [1e3 * s for *_, s, _ in found], left=[1e3 * setup for _, _, setup, _, _ in found], label="solve")
right.set(title="Time for one right-hand side", xlabel="ms")
right.invert_yaxis()
figure.legend(*right.get_legend_handles_labels(), loc="outside lower right", ncols=2, frameon=False)

# %% [markdown]
# With many right-hand sides the set-up counts once, and the order changes. `finelu compare A.mtx` measures all recipes on
# your matrix and says from how many right-hand sides on each is the best ([compare](../compare.md)). `fl.solve` chooses
# by itself. [The tutorial](../which-preconditioner.md) tries harder matrices.
