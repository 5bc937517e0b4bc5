# %% [markdown]
# # Time steps with a sequence, executed
#
# Heat spreads in a plate with a hot spot. An implicit step solves (1 + Δt K) u_new = u, and Δt grows. The pattern
# stays, the values change: a `Sequence` decides before each step whether its factors still do.

# %%
import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp

import finelu as fl

side = 80
K = fl.gallery.problem(f"poisson5:{side}")
y, x = np.divmod(np.arange(side * side), side)
u = np.exp(-((x - 25) ** 2 + (y - 50) ** 2) / 40.0)
dt, pictures, steps = 0.5, [u], []
sequence = fl.Sequence(rtol=1e-8)
for step in range(24):
    solution = sequence.step(sp.identity(u.size) + dt * K, u)
    assert solution.converged
    u, dt = solution.x, 1.2 * dt
    steps.append((dt, solution.iterations, sequence.decisions[-1]))
    if step in (8, 16, 23):
        pictures.append(u)

# %%
figure, axes = plt.subplots(1, 4, figsize=(9, 2.5))
for k, (axis, field) in enumerate(zip(axes, pictures)):
    axis.imshow(field.reshape(side, side), cmap="inferno", origin="lower")
    axis.set(title=f"after {(0, 9, 17, 24)[k]} steps", xticks=[], yticks=[])

# %% [markdown]
# What the sequence decided, and the iterations of each step:

# %%
for word in dict.fromkeys(sequence.decisions):
    iterations = [count for _, count, decision in steps if decision == word]
    print(
        f"{word:8} in {len(iterations):2} of {len(steps)} steps:"
        f" {min(iterations)} to {max(iterations)} iterations"
    )
print(solution.explain())

# %% [markdown]
# [Sequences](../sequences.md) has Newton's method, and the same by hand.
