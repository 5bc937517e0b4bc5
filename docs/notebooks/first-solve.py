# %% [markdown]
# # A first solve, executed
#
# A x = b with a sparse A: one call, and what it tells. The matrix is the discrete Laplacian in a cube; any matrix of
# `scipy.sparse` takes its place.

# %%
import matplotlib.pyplot as plt
import numpy as np

import finelu as fl

A = fl.gallery.problem("poisson7:30")
b = np.ones(A.shape[0])
print(f"{A.shape[0]:,} unknowns, {A.nnz:,} entries, {A.nnz / A.shape[0]:.1f} a row")

# %% [markdown]
# `solve` looks at A, chooses a preconditioner and a Krylov method, and tests the answer.

# %%
fl.solve(A, b)  # the first call of a process loads the kernels
solution = fl.solve(A, b, rtol=1e-10)
print(solution.explain())

# %% [markdown]
# "Converged" speaks of the x that is returned. The residual can be computed by hand:

# %%
x = solution.x
print(f"||b - A x|| / ||b|| = {np.linalg.norm(b - A @ x) / np.linalg.norm(b):.1e}")

# %% [markdown]
# The history has the residual norm after each iteration. Here are three preconditioners for the same method:

# %%
figure, axes = plt.subplots()
for recipe in (fl.Jacobi(), fl.IC0(), fl.MILU0()):
    with_it = fl.cg(A, b, M=recipe.factor(A), rtol=1e-10)
    axes.semilogy(
        with_it.history / with_it.history[0],
        label=f"{recipe!r}: {with_it.iterations} iterations",
    )
axes.set(
    title="Conjugate gradients",
    xlabel="iteration",
    ylabel="residual, relative to the first",
)
axes.xaxis.get_major_locator().set_params(integer=True)
axes.legend()

# %% [markdown]
# Where a system has no solution, the call says so, and does not return noise:

# %%
hopeless = fl.gallery.problem("poisson5:12").tolil()
hopeless[7] = hopeless[8]  # two equal rows, but not of b
failed = fl.solve(hopeless.tocsr(), np.arange(144.0))
print(failed.status.name, failed.converged)
print(failed.status.value)

# %% [markdown]
# Next: [which preconditioner](../which-preconditioner.md), [many systems of one pattern](time-steps.md),
# [gradients](fit.md), [what each line of `explain()` means](../solution.md#explain-line-by-line).
