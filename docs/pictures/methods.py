"""Pictures of the methods, each from a computation that takes seconds: python docs/pictures/methods.py [NAME ...]."""

import sys

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp
from style import COLOURS, history, legend_below, panels, write

import finelu as fl
from finelu.ordering import complete_fill, minimum_degree
from finelu.properties import level_sizes


def ones(A):
    return np.ones(A.shape[0])


def spy(axis, A, title, colour=COLOURS[0], marker=1.6):
    S = sp.coo_matrix(A)
    axis.plot(S.col, S.row, "s", color=colour, ms=marker, mew=0)
    axis.set(title=title, xlim=(-1, S.shape[1]), ylim=(S.shape[0], -1), aspect="equal", xticks=[], yticks=[])
    for side in axis.spines.values():
        side.set_visible(True)


def solves(axis, A, tries, method):
    """Residuals of one method with several preconditioners (label, factors)."""
    b = ones(A)
    for label, F in tries:
        history(axis, getattr(fl, method)(A, b, M=F, rtol=1e-8, maxiter=2000), label)
    axis.set(xlabel=f"{method} iterations", ylabel="residual, relative")
    axis.legend()


def jacobi():
    """An elastic block: three unknowns a node."""
    A = fl.gallery.problem("elasticity:8,4,4")
    figure, (axis,) = panels(width=5, height=3.6)
    recipes = (fl.Jacobi(), fl.BlockJacobi(block_size=3), fl.IC0(shift=0.1))
    solves(axis, A, [("none", None), *((repr(recipe), recipe.factor(A)) for recipe in recipes)], "cg")
    axis.set_title("elasticity, 8 x 4 x 4 cubes")
    legend_below(axis)
    write(figure, "jacobi")


def ilu0():
    """What the product of the factors has beyond A."""
    A = fl.gallery.problem("poisson5:8")
    F = fl.ILU0().factor(A)
    product = sp.csr_matrix(F.L @ F.U)
    product.data[abs(product.data) < 1e-12] = 0
    product.eliminate_zeros()
    beyond = product - product.multiply(A != 0)
    figure, axes = panels(3, 2.5, 2.6)
    spy(axes[0], A, f"A: {A.nnz} entries")
    spy(axes[1], F.L + F.U, "L + U: the same places", COLOURS[2])
    spy(axes[2], beyond, f"L U - A: {sp.csr_matrix(beyond).count_nonzero()} others", COLOURS[1])
    write(figure, "ilu0", raster=True)


def ic0():
    A = fl.gallery.problem("poisson7:24")
    figure, (axis,) = panels(width=5)
    solves(axis, A, [("none", None), ("IC0()", fl.IC0().factor(A))], "cg")
    axis.set_title("Poisson, 7 points, 24 x 24 x 24")
    write(figure, "ic0")


def iluk():
    """The places that each level adds."""
    A = fl.gallery.problem("poisson5:8")
    figure, axes = panels(4, 2.2, 2.4)
    before = sp.csr_matrix(A.shape)
    for level, axis in enumerate(axes):
        F = fl.ILUK(level=level).factor(A)
        pattern = sp.csr_matrix(abs(F.L) + abs(F.U) + sp.identity(A.shape[0])) != 0
        spy(axis, pattern, f"level={level}: {pattern.nnz}", COLOURS[1] if level else COLOURS[0])
        if level:
            old = sp.coo_matrix(before)
            axis.plot(old.col, old.row, "s", color=COLOURS[0], ms=1.6, mew=0)
        before = pattern
    write(figure, "iluk", raster=True)


def milu0():
    """Iterations against the width of the grid."""
    widths = np.array([16, 32, 64, 128, 256])
    counts = {"IC0()": [], "MILU0(relax=0.95)": [], "MILU0()": []}
    for n in widths:
        A = fl.gallery.poisson5(int(n))
        b = np.random.default_rng(0).standard_normal(A.shape[0])
        for recipe in (fl.IC0(), fl.MILU0(relax=0.95), fl.MILU0()):
            solution = fl.cg(A, b, M=recipe.factor(A), rtol=1e-8)
            assert solution.converged
            counts[repr(recipe)].append(solution.iterations)
    figure, (axis,) = panels(width=5, height=3.5)
    for label, found in counts.items():
        axis.loglog(widths, found, "o-", label=f"{label}: {', '.join(map(str, found))}")
    axis.set(xlabel="grid points a side, 5-point Poisson", ylabel="cg iterations to 1e-8")
    axis.set_xticks(widths, [str(n) for n in widths])
    axis.set_yticks([20, 50, 100, 200], ["20", "50", "100", "200"])
    axis.minorticks_off()
    legend_below(axis)
    write(figure, "milu0")


def against_fill(axis, A, method, families):
    """Iterations against the entries of the factors over those of A."""
    b = ones(A)
    for label, recipes in families.items():
        points = []
        for recipe in recipes:
            try:
                F = recipe.factor(A)
            except fl.ZeroPivot:
                continue
            solution = getattr(fl, method)(A, b, M=F, rtol=1e-8, maxiter=1000)
            if solution.converged:
                full = 2 * F.nnz - A.shape[0] if method == "cg" else F.nnz
                points.append((full / A.nnz, solution.iterations))
        axis.plot(*zip(*points), "o-" if len(points) > 1 else "D", label=label)
    axis.set(xlabel="entries of the factors over those of A", ylabel=f"{method} iterations to 1e-8", ylim=(0, None))
    axis.legend()


def ilut():
    A = fl.gallery.problem("anisotropic_triangles:4")
    figure, (axis,) = panels(width=5)
    tolerances = (1e-1, 5e-2, 2e-2, 1e-2, 5e-3, 2e-3, 1e-3)
    families = {
        "ILU0": [fl.ILU0()],
        "ILUK, levels 1 to 4": [fl.ILUK(level=k) for k in (1, 2, 3, 4)],
        "ILUT, drop_tol 0.1 to 0.001": [fl.ILUT(drop_tol=t) for t in tolerances],
    }
    against_fill(axis, A, "gmres", families)
    axis.set_title("a strongly anisotropic problem, 3,081 rows")
    write(figure, "ilut")


def ict():
    A = fl.gallery.problem("anisotropic_triangles:4")
    figure, (axis,) = panels(width=5)
    tolerances = (1e-1, 5e-2, 2e-2, 1e-2, 5e-3, 2e-3, 1e-3)
    families = {"IC0": [fl.IC0()], "ICT, where it exists": [fl.ICT(drop_tol=t) for t in tolerances]}
    against_fill(axis, A, "cg", families)
    axis.set_title("a strongly anisotropic problem, 3,081 rows")
    write(figure, "ict")


def parilu():
    """The residual and the iterations against the sweeps."""
    figure, axes = panels(2)
    for name in ("poisson7:16", "anisotropic_triangles:4"):
        A = fl.gallery.problem(name)
        b = ones(A)
        norms = fl.ParIC(sweeps=15, track=True).factor(A).report["residual_norms"]
        axes[0].semilogy(norms, "o-", ms=3, label=name)
        sweeps = range(1, 11)
        found = [fl.cg(A, b, M=fl.ParIC(sweeps=k).factor(A), rtol=1e-8).iterations for k in sweeps]
        exact = fl.cg(A, b, M=fl.IC0().factor(A), rtol=1e-8).iterations
        (line,) = axes[1].plot(sweeps, found, "o-", ms=3, label=name)
        axes[1].axhline(exact, color=line.get_color(), ls=":", lw=1)
    axes[0].set(xlabel="sweeps", ylabel="residual on the pattern, relative")
    axes[1].set(xlabel="sweeps", ylabel="cg iterations; dotted: IC0", ylim=(0, None))
    axes[0].legend()
    write(figure, "parilu")


def parilut():
    """The residual and the iterations against the steps."""
    A = fl.gallery.problem("anisotropic_triangles:4")
    b = ones(A)
    figure, axes = panels(2)
    steps = range(9)
    factors = [fl.ParICT(steps=k).factor(A) for k in steps]
    axes[0].semilogy(factors[-1].report["residual_norms"], "o-", ms=3, label="ParICT, fill as IC0")
    axes[0].set(xlabel="steps", ylabel="residual of L Lᴴ, relative")
    axes[1].plot(steps, [fl.cg(A, b, M=F, rtol=1e-8).iterations for F in factors], "o-", ms=3, label="ParICT")
    axes[1].axhline(fl.cg(A, b, M=fl.IC0().factor(A), rtol=1e-8).iterations, color=COLOURS[1], ls=":", label="IC0")
    axes[1].set(xlabel="steps", ylabel="cg iterations to 1e-8", ylim=(0, None))
    axes[1].legend()
    write(figure, "parilut")


def multilevel():
    """A saddle point, and how many of its rows each level defers."""
    A = fl.gallery.stokes(16)
    b = A @ np.sin(np.arange(A.shape[0]))
    figure, axes = panels(3, 3.0, 2.8)
    spy(axes[0], A, f"Stokes flow: {A.shape[0]} rows")
    bounds = (1.5, 2, 3, 5, 10, 30, 100)
    made = [fl.MultilevelILU(condest=k).factor(A) for k in bounds]
    axes[1].semilogx(bounds, [F.report["levels"][0]["n"] - F.report["levels"][0]["pivots"] for F in made], "o-")
    axes[1].set(xlabel="condest", ylabel="rows deferred by the first level", ylim=(0, None))
    history(axes[2], fl.gmres(A, b, rtol=1e-8, restart=50, maxiter=300), "none")
    history(axes[2], fl.gmres(A, b, M=fl.MultilevelILU().factor(A), rtol=1e-8), "MultilevelILU()")
    axes[2].set(xlabel="gmres iterations", ylabel="residual, relative")
    axes[2].legend()
    write(figure, "multilevel", raster=True)


def block_ilu():
    """Hyperplanes of a grid, and the solves of a coupled problem."""
    figure, axes = panels(2, 3.6, 3.3)
    i, j = np.meshgrid(np.arange(10), np.arange(7), indexing="ij")
    axes[0].scatter(i, j, c=i + j, cmap="viridis", marker="s", s=120)
    for x, y in zip(i.ravel(), j.ravel()):
        axes[0].text(x, y, x + y, ha="center", va="center", color="white" if x + y < 11 else "black", fontsize=7)
    axes[0].set(title="cells with one number: at the same time", xlabel="i", ylabel="j", aspect="equal")
    A = fl.gallery.problem("elasticity:8,4,4")
    tries = (fl.Jacobi(), fl.BlockJacobi(block_size=3), fl.BlockILU0(block_size=3))
    solves(axes[1], A, [(repr(recipe), recipe.factor(A)) for recipe in tries], "bicgstab")
    axes[1].set_title("elasticity, blocks of 3 x 3")
    legend_below(axes[1])
    write(figure, "block_ilu")


def sparse_lu():
    """Fill and work of a complete factorization, counted without making it."""
    figure, axes = panels(2)
    for label, make, widths in (
        ("2-D, 5 points", fl.gallery.poisson5, (32, 64, 128, 256, 512)),
        ("3-D, 7 points", fl.gallery.poisson7, (8, 12, 18, 26, 36)),
    ):
        rows, fill, work = [], [], []
        for n in widths:
            A = fl.gallery.problem(f"{make.__name__}:{n}")
            expected = complete_fill(A, minimum_degree(A))
            rows.append(A.shape[0])
            fill.append(expected.nnz / A.nnz)
            work.append(expected.flops / A.nnz)
        axes[0].loglog(rows, fill, "o-", label=label)
        axes[1].loglog(rows, work, "o-", label=label)
    axes[0].set(xlabel="rows", ylabel="entries over those of A")
    axes[1].set(xlabel="rows", ylabel="operations an entry of A")
    axes[0].legend()
    write(figure, "sparse_lu")


def triangular():
    """Rows a level: what may run at the same time."""
    figure, axes = panels(3, 2.9, 2.4)
    problems = (("poisson7:24", "3-D grid"), ("poisson5:118", "2-D grid"), ("random_dominant:13924,0.001", "random"))
    for axis, (name, label) in zip(axes, problems):
        A = fl.gallery.problem(name)
        lower, _ = level_sizes(fl.as_csr(A))
        axis.fill_between(np.arange(lower.size), lower, step="mid", color=COLOURS[0], lw=0)
        axis.set(title=f"{label}: {A.shape[0]} rows, {lower.size} levels", xlabel="level", ylim=(0, None))
    axes[0].set_ylabel("rows")
    write(figure, "triangular")


def krylov():
    """A symmetric problem and one with convection, each with ILU(0) or IC(0)."""
    figure, axes = panels(2)
    A = fl.gallery.problem("anisotropic_triangles:4")
    F = fl.IC0().factor(A)
    for method in ("cg", "minres", "gmres", "bicgstab"):
        history(axes[0], getattr(fl, method)(A, ones(A), M=F, rtol=1e-8, maxiter=400), method)
    A = fl.gallery.problem("convection_diffusion:24")
    F = fl.ILU0().factor(A)
    for method in ("gmres", "bicgstab", "bicg"):
        history(axes[1], getattr(fl, method)(A, ones(A), M=F, rtol=1e-8, maxiter=400), method)
    for axis, title in zip(axes, ("positive definite, IC0", "convection and diffusion, ILU0")):
        axis.set(title=title, xlabel="iterations", ylabel="residual, relative")
        axis.legend()
    write(figure, "krylov")


def schwarz():
    """Iterations against the width of the grid, and against the size of the parts."""
    widths, sizes = np.array([16, 24, 32, 48, 64]), 64 * 4 ** np.arange(4)
    figure, axes = panels(2, 3.5, 3.4)
    recipes = {"IC0()": fl.IC0(), "parts alone": fl.Schwarz(coarse=None), "Schwarz()": fl.Schwarz()}
    for label, recipe in recipes.items():
        found = [schwarz_iterations(int(n), recipe) for n in widths]
        axes[0].loglog(widths, found, "o-", label=f"{label}: {', '.join(map(str, found))}")
    axes[0].set(xlabel="grid points a side, 7-point Poisson", ylabel="cg iterations to 1e-8")
    axes[0].set_xticks(widths, [str(n) for n in widths])
    for label, given in (
        ("parts alone", {"coarse": None}),
        ("additive", {"combine": "additive"}),
        ("balanced", {}),
    ):
        found = [schwarz_iterations(48, fl.Schwarz(size=int(size), **given)) for size in sizes]
        axes[1].loglog(sizes, found, "o-", label=f"{label}: {', '.join(map(str, found))}")
    axes[1].set(xlabel="rows of a part, 48 points a side")
    axes[1].set_xticks(sizes, [str(size) for size in sizes])
    for axis in axes:
        axis.set_yticks([20, 40, 80, 160], ["20", "40", "80", "160"])
        axis.minorticks_off()
        legend_below(axis)
    write(figure, "schwarz")


def schwarz_iterations(width, recipe):
    A = fl.gallery.poisson7(width, width, width)
    b = np.random.default_rng(0).uniform(-0.5, 0.5, A.shape[0])
    solution = fl.cg(A, b, M=recipe.factor(A), rtol=1e-8)
    assert solution.converged
    return solution.iterations


FACTORS = (jacobi, ilu0, ic0, iluk, milu0, schwarz, ilut, ict)
OTHERS = (parilu, parilut, multilevel, block_ilu, sparse_lu, triangular, krylov)
PICTURES = {f.__name__: f for f in (*FACTORS, *OTHERS)}

if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()
        plt.close("all")
