# %% [markdown]
# # Inside PETSc, executed
#
# PETSc spreads a matrix over processes and iterates; finelu makes the factors of each process's block. First one
# process, in which the recipe is given in Python.

# %%
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from petsc4py import PETSc

import finelu as fl
from finelu.interop.petsc import PC

version = ".".join(map(str, PETSc.Sys.getVersion()))
print(f"PETSc {version}, {len(os.sched_getaffinity(0))} cores of the CPU")

S = fl.gallery.problem("convection_diffusion:24")
A = PETSc.Mat().createAIJ(
    S.shape, csr=(S.indptr, S.indices, S.data), comm=PETSc.COMM_SELF
)
x, b = A.createVecs()
b.set(1.0)


def solver():
    """GMRES that tests the true residual and keeps its history."""
    ksp = PETSc.KSP().create(PETSc.COMM_SELF)
    ksp.setOperators(A)
    ksp.setType("gmres")
    ksp.setPCSide(PETSc.PC.Side.RIGHT)
    ksp.setTolerances(rtol=1e-8)
    ksp.setConvergenceHistory()
    return ksp


# %% [markdown]
# Recipes of finelu, and PETSc's own ILU(0). `ILU0` is the same factorization, so its iterations are the same, too.

# %%
figure, axes = plt.subplots()
for recipe in (None, fl.ILU0(), fl.ILUT(), fl.ParILUT()):
    ksp = solver()
    if recipe is None:
        ksp.getPC().setType("ilu")
    else:
        ksp.getPC().setType("python")
        ksp.getPC().setPythonContext(PC(recipe))
    ksp.solve(b, x)
    assert ksp.getConvergedReason() > 0
    history = ksp.getConvergenceHistory()
    name = "PETSc's ILU(0)" if recipe is None else repr(recipe)
    print(
        f"{name:14} {ksp.getIterationNumber():2} iterations,"
        f" ||b - A x|| / ||b|| = {(b - A * x).norm() / b.norm():.1e}"
    )
    axes.semilogy(
        history / history[0],
        "k--" if recipe is None else "-",
        zorder=3 if recipe is None else 2,
        label=name,
    )
axes.set(
    title="GMRES of PETSc", xlabel="iteration", ylabel="residual, relative to the first"
)
axes.xaxis.get_major_locator().set_params(integer=True)
axes.legend()

# %% [markdown]
# The same by options alone, as any program of PETSc takes them, in C and Fortran too:

# %%
options = PETSc.Options()
for name, value in (
    ("pc_type", "python"),
    ("pc_python_type", "finelu.interop.petsc.PC"),
    ("finelu_recipe", "ilut"),
    ("finelu_drop_tol", 1e-2),
):
    options[name] = value
ksp = solver()
ksp.setFromOptions()
ksp.solve(b, x)
print(
    f"{ksp.getPC().getPythonContext().recipe!r}: {ksp.getIterationNumber()} iterations"
)
for name in ("pc_type", "pc_python_type", "finelu_recipe", "finelu_drop_tol"):
    options.delValue(name)

# %% [markdown]
# Several processes: the next program knows nothing of finelu. Each process owns the rows of some layers of a cube.

# %%
PROGRAM = """
import sys
import petsc4py
petsc4py.init(sys.argv)
import numpy as np
from petsc4py import PETSc

n = 32
A = PETSc.Mat().createAIJ(n**3, nnz=7, comm=PETSc.COMM_WORLD)
for row in range(*A.getOwnershipRange()):
    z, y, x = row // n**2, row // n % n, row % n
    steps = [(x > 0, -1), (x < n - 1, 1), (y > 0, -n), (y < n - 1, n)]
    steps += [(z > 0, -n * n), (z < n - 1, n * n)]
    columns = [row] + [row + step for inside, step in steps if inside]
    A.setValues([row], columns, [6.0] + [-1.0] * (len(columns) - 1))
A.assemble()
x, b = A.createVecs()
b.set(1.0)
ksp = PETSc.KSP().create()
ksp.setOperators(A)
ksp.setType("cg")
ksp.setTolerances(rtol=1e-8)
ksp.setFromOptions()
ksp.solve(b, x)
residual = (b - A * x).norm() / b.norm()
PETSc.Sys.Print(ksp.getIterationNumber(), ksp.getConvergedReason(), residual)
"""


def run(processes, options):
    """Iterations, PETSc's reason and the relative residual of the program."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(PROGRAM)
        words = [
            "mpiexec",
            "-n",
            str(processes),
            sys.executable,
            str(program),
            *options.split(),
        ]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
    iterations, reason, residual = done.stdout.split()
    assert int(reason) > 0
    return int(iterations), float(residual)


in_blocks = (
    "-pc_type bjacobi -sub_pc_type python"
    " -sub_pc_python_type finelu.interop.petsc.PC -sub_finelu_recipe"
)
over_all = "-pc_type python -pc_python_type finelu.interop.petsc.PC -finelu_recipe"
choices = {
    "PETSc's ICC(0) in each block": "-pc_type bjacobi -sub_pc_type icc",
    "finelu's IC0 in each block": f"{in_blocks} ic0",
    "finelu's ICT in each block": f"{in_blocks} ict",
    "finelu's Schwarz over all processes": f"{over_all} schwarz",
}
processes = (1, 2, 4, 8)
figure, axes = plt.subplots()
for name, words in choices.items():
    found = [run(count, words) for count in processes]
    print(
        f"{name:36} {', '.join(f'{iterations:2}' for iterations, _ in found)}"
        f" iterations on {processes} processes"
    )
    style = "k--" if name.startswith("PETSc") else "o-"
    axes.plot(
        processes,
        [iterations for iterations, _ in found],
        style,
        zorder=3 if style == "k--" else 2,
        label=name,
    )
axes.set(title="Iterations of CG", xlabel="processes", xticks=processes, ylim=(0, None))
axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))

# %% [markdown]
# In blocks, more processes take more iterations. The coarse space of `Schwarz` couples all of them: its iterations stay
# the same.
#
# When no factors exist, no process waits for another: PETSc ends with a reason, and a line on stderr names the row.

# %%
S.data[S.indptr[5] : S.indptr[6]] = 0.0  # row 5 is zero now
A.setValuesCSR(S.indptr, S.indices, S.data)
A.assemble()
ksp = solver()
ksp.getPC().setType("python")
ksp.getPC().setPythonContext(PC(fl.ILU0()))
ksp.solve(b, x)
assert ksp.getConvergedReason() == PETSc.KSP.ConvergedReason.DIVERGED_PCSETUP_FAILED
print(f"PETSc's reason {ksp.getConvergedReason()}: the preconditioner failed")

# %% [markdown]
# [Inside PETSc](../petsc.md) has all options, the installation, and what the reasons mean.
# [How it scales](../scaling.md) has times.
