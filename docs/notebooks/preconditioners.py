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
recipes = [
    fl.Jacobi(),
    fl.ILU0(),
    fl.MILU0(),
    fl.ILUK(),
    fl.ILUT(drop_tol=1e-2),
    fl.ILUT(),
]

# %% [markdown]
# `factor` makes the factors; every method takes them as `M`. The first call of a recipe may compile its kernels, so
# each is called twice, and the second call is timed.

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
    fill = F.nnz / A.nnz
    found.append((recipe, fill, setup, seconds, solution))
    print(
        f"{recipe!r:20} {fill:3.1f} times A's entries, set-up {1e3 * setup:5.1f} ms,"
        f" {solution.iterations:3} iterations in {1e3 * seconds:5.1f} ms"
    )

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
for k, (recipe, _, setup, seconds, solution) in enumerate(found):
    left.semilogy(solution.history / solution.history[0], label=repr(recipe))
    right.barh(k, 1e3 * setup, color=f"C{k}")
    right.barh(k, 1e3 * seconds, left=1e3 * setup, color=f"C{k}", alpha=0.5)
left.set(title="Residual", xlabel="iteration", ylabel="relative to the first")
left.xaxis.get_major_locator().set_params(integer=True)
left.legend(fontsize=8)
names = [repr(recipe) for recipe, *_ in found]
right.set(
    title="Set-up and, paler, one solve",
    xlabel="ms",
    yticks=range(len(names)),
    yticklabels=names,
)
right.invert_yaxis()

# %% [markdown]
# With many right-hand sides the set-up counts once, and the order changes. `finelu compare A.mtx` measures all recipes
# on your matrix and says from how many right-hand sides on each is the best ([compare](../compare.md)). `fl.solve`
# chooses by itself. [The tutorial](../which-preconditioner.md) tries harder matrices.
