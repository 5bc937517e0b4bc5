# %% [markdown]
# # Gradients: fitting a conductivity, executed
#
# A field x solves A(k) x = b, and x was measured at a few places. Which conductivity k explains that? The gradient of
# the misfit costs one more solve, with Aᴴ, whatever the number of parameters ([the formula](../gradients.md)).

# %%
import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp
from scipy.optimize import minimize

import finelu as fl

# a resistor between neighbouring cells, and one from each cell at the rim to the ground
n = 24  # cells a side
cell = np.arange(n * n).reshape(n, n)
across, up = (
    np.c_[cell[:, :-1].ravel(), cell[:, 1:].ravel()],
    np.c_[cell[:-1].ravel(), cell[1:].ravel()],
)
pairs = np.vstack([across, up])
m = len(pairs)
G = sp.csr_matrix(
    (np.tile([1.0, -1.0], m), (np.repeat(np.arange(m), 2), pairs.ravel())),
    shape=(m, n * n),
)
rim = np.zeros((n, n))
rim[[0, -1]], rim[:, [0, -1]] = 1.0, 1.0
b = np.ones(n * n)


def system(logarithm):
    """A(k): the conductance of a resistor is the mean of its two cells."""
    k = np.exp(logarithm)
    return sp.csr_matrix(
        G.T @ sp.diags(0.5 * k[pairs].sum(axis=1)) @ G + sp.diags(rim.ravel())
    )


# %% [markdown]
# The truth has a good conductor in the middle. A third of the cells is measured.

# %%
rng = np.random.default_rng(0)
truth = np.zeros((n, n))
truth[8:16, 6:18] = 1.5
seen = rng.random(n * n) < 1 / 3
measured = fl.solve(system(truth.ravel()), b, 1e-12).x
weight = 1e-4  # of the differences between neighbours
solves = 0


def misfit(p):
    """The misfit and its gradient: two solves."""
    global solves
    A, k = system(p), np.exp(p)
    x = fl.solve(A, b, 1e-12).x
    r = np.where(seen, x - measured, 0.0)
    adjoint = fl.solve(A, r, 1e-12).x  # A is symmetric: Aᴴ = A
    along = -(G @ adjoint) * (G @ x)  # by the conductance of each resistor
    gradient = (
        0.5 * k * np.bincount(pairs.ravel(), np.repeat(along, 2), minlength=n * n)
    )
    solves += 2
    value = 0.5 * r @ r + 0.5 * weight * (G @ p) @ (G @ p)
    return value, gradient + weight * (G.T @ (G @ p))


# %% [markdown]
# First the gradient is compared with a difference quotient, then L-BFGS takes it.

# %%
p, direction = rng.normal(0, 0.3, n * n), rng.normal(0, 1, n * n)
_, gradient = misfit(p)
quotient = (misfit(p + 1e-5 * direction)[0] - misfit(p - 1e-5 * direction)[0]) / 2e-5
print(f"gradient {gradient @ direction:.8f}, difference quotient {quotient:.8f}")
assert abs(gradient @ direction - quotient) < 1e-5 * abs(quotient)

fit = minimize(
    misfit, np.zeros(n * n), jac=True, method="L-BFGS-B", options={"maxiter": 60}
)
print(
    f"misfit {misfit(np.zeros(n * n))[0]:.2e} before, {fit.fun:.2e} after;"
    f" {fit.nit} steps, {solves} solves"
)

# %%
figure, axes = plt.subplots(1, 3, figsize=(8, 2.8))
shown = {"truth": truth, "measured cells": np.where(seen, 1.0, 0.0), "fitted": fit.x}
for axis, (title, values) in zip(axes, shown.items()):
    drawn = axis.imshow(
        np.reshape(values, (n, n)), vmin=0, vmax=1.5, cmap="viridis", origin="lower"
    )
    axis.set(title=title, xticks=[], yticks=[])
figure.colorbar(drawn, ax=axes, label="logarithm of the conductivity")

# %% [markdown]
# The rim of the good conductor is found. Inside of it x is nearly flat, so that the data hardly tell the conductivity
# there, and the penalty decides.
#
# With PyTorch and JAX the adjoint comes with `backward()` and `grad` ([gradients](../gradients.md)).
