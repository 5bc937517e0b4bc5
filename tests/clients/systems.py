"""The systems that programs solve by SciPy, written to files, for `benchmarks/claims/programs.py`.

    python systems.py CLIENT FOLDER [--examples DOCS]    # in the client's environment, which run.py makes

CLIENT : pandapower: load flows by Newton's method, and a PTDF; simpeg: electromagnetics; skfem: the examples of
    scikit-fem's sources, whose folder docs/examples is DOCS, as packages do not have them. They need meshio and
    matplotlib.
A folder for each example has a file for each call of `spsolve`, in their order; one with ", splu" behind its name has
the matrix of each `splu`. A file holds data, indices, indptr, shape and format of A, and b, which is empty for `splu`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg


@contextlib.contextmanager
def recorded(folder: Path) -> Iterator[None]:
    """Write all systems that are solved meanwhile, by whichever module, into a folder."""

    def write(place: Path, A: Any, b: Any) -> None:
        S = A if A.format in ("csr", "csc") else A.tocsc()
        place.mkdir(parents=True, exist_ok=True)
        parts = {"data": S.data, "indices": S.indices, "indptr": S.indptr, "shape": S.shape, "format": S.format}
        np.savez_compressed(place / f"{len(list(place.iterdir())):04d}.npz", b=b, **parts)

    def solving(own: Any) -> Any:
        def spsolve(A: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
            if sp.issparse(A):
                write(folder, A, b.toarray() if sp.issparse(b) else b)
            return own(A, b, *args, **kwargs)

        return spsolve

    def factoring(own: Any) -> Any:
        def splu(A: Any, *args: Any, **kwargs: Any) -> Any:
            write(folder.with_name(f"{folder.name}, splu"), A, np.empty(0))
            return own(A, *args, **kwargs)

        return splu

    makers = {"spsolve": solving, "splu": factoring}
    own = {name: getattr(scipy.sparse.linalg, name) for name in makers}
    places = [
        (module, name, own[name])
        for key, module in list(sys.modules.items())
        for name in makers
        if getattr(module, name, None) is own[name] and not key.startswith(("scipy.sparse.linalg._", "finelu"))
    ]
    for module, name, function in places:
        setattr(module, name, makers[name](function))
    try:
        yield
    finally:
        for place in places:
            setattr(*place)


def pandapower(folder: Path) -> None:
    client = import_module("with_pandapower")
    for name in client.CASES:
        net = getattr(client.networks, name)()
        with recorded(folder / name):
            client.load_flow(net)
        if name == "case1888rte":
            with recorded(folder / f"PTDF {name}"):
                client.ptdf(net, memory_saved=False)


def simpeg(folder: Path) -> None:
    client, pymatsolver = import_module("with_simpeg"), import_module("pymatsolver")
    with recorded(folder / "electromagnetics"):  # a class of pymatsolver keeps the function that it was made with
        client.electromagnetics(pymatsolver.wrap_direct(scipy.sparse.linalg.splu), side=10, sources=1)


def skfem(folder: Path, examples: Path) -> None:
    sys.path.insert(0, str(examples.parents[1]))
    import_module("matplotlib").use("Agg")
    with contextlib.chdir(examples.parents[1]):
        for path in sorted(examples.glob("ex*.py")):
            try:
                with recorded(folder / path.stem), contextlib.redirect_stdout(io.StringIO()):
                    import_module(f"docs.examples.{path.stem}")
            except (Exception, SystemExit) as error:
                print(f"{path.stem} is left out: {type(error).__name__}: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("client", choices=["pandapower", "simpeg", "skfem"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--examples", type=Path, help="docs/examples of scikit-fem's sources")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    folder = given.folder.resolve() / given.client
    if given.client == "skfem":
        if given.examples is None:
            parser.error("skfem needs --examples")
        skfem(folder, given.examples.resolve())
    else:
        {"pandapower": pandapower, "simpeg": simpeg}[given.client](folder)


if __name__ == "__main__":
    main()
