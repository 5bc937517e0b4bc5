"""finelu: fine-grained parallel incomplete factorizations, triangular solves and Krylov methods on CPU and GPU.

A recipe makes factors, and factors precondition a Krylov method:

    import finelu as fl

    F = fl.ILU0().factor(A)
    solution = fl.gmres(A, b, M=F, rtol=1e-8)

Importing finelu is cheap: each name, and each module such as `finelu.ordering`, is loaded at first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finelu import (  # noqa: F401 - modules, of which most are not in __all__
        auto,
        compare,
        errors,
        factors,
        gallery,
        interop,
        io,
        krylov,
        matrix,
        ordering,
        preconditioners,
        properties,
        report,
        result,
        scaling,
        selection,
        threads,
        triangular,
    )
    from finelu.auto.sequence import Sequence
    from finelu.auto.solve import solve
    from finelu.errors import (
        DeviceError,
        FileError,
        FineluError,
        MatrixError,
        ParameterError,
        SingularMatrix,
        StructurallySingular,
        UnstableFactors,
        ZeroPivot,
    )
    from finelu.factors import Factors
    from finelu.interop.superlu import spilu
    from finelu.io import read_matrix
    from finelu.krylov import bicg, bicgstab, cg, fgmres, gmres, minres, richardson, sqmr
    from finelu.krylov.richardson import correct
    from finelu.matrix import as_csr
    from finelu.matrix.blocks import BlockMatrix
    from finelu.matrix.stencil import StencilMatrix
    from finelu.preconditioners import (
        IC0,
        ICT,
        ILU0,
        ILUK,
        ILUT,
        MILU0,
        BlockILU0,
        BlockJacobi,
        Jacobi,
        MultilevelILU,
        ParIC,
        ParICT,
        ParILU,
        ParILUT,
        SingularBlock,
        SparseLU,
    )
    from finelu.result import Solution, Status
    from finelu.threads import get_num_threads, set_num_threads
    from finelu.triangular import TriangularSolver

__version__ = "0.1.0"

_MODULE_OF = {
    "BlockILU0": "preconditioners",
    "BlockJacobi": "preconditioners",
    "BlockMatrix": "matrix.blocks",
    "DeviceError": "errors",
    "Factors": "factors",
    "FileError": "errors",
    "FineluError": "errors",
    "IC0": "preconditioners",
    "ICT": "preconditioners",
    "ILU0": "preconditioners",
    "ILUK": "preconditioners",
    "ILUT": "preconditioners",
    "Jacobi": "preconditioners",
    "MILU0": "preconditioners",
    "MatrixError": "errors",
    "MultilevelILU": "preconditioners",
    "ParIC": "preconditioners",
    "ParICT": "preconditioners",
    "ParILU": "preconditioners",
    "ParILUT": "preconditioners",
    "ParameterError": "errors",
    "Sequence": "auto.sequence",
    "SingularBlock": "preconditioners",
    "SingularMatrix": "errors",
    "SparseLU": "preconditioners",
    "Solution": "result",
    "Status": "result",
    "StencilMatrix": "matrix.stencil",
    "StructurallySingular": "errors",
    "TriangularSolver": "triangular",
    "UnstableFactors": "errors",
    "ZeroPivot": "errors",
    "as_csr": "matrix",
    "bicg": "krylov",
    "bicgstab": "krylov",
    "cg": "krylov",
    "correct": "krylov.richardson",
    "fgmres": "krylov",
    "get_num_threads": "threads",
    "gmres": "krylov",
    "minres": "krylov",
    "read_matrix": "io",
    "richardson": "krylov",
    "set_num_threads": "threads",
    "solve": "auto.solve",
    "spilu": "interop.superlu",
    "sqmr": "krylov",
}

# Modules that need no import of their own. Only gallery is in __all__: `from finelu import *` is not to bring an `io`.
_MODULES = (
    "auto",
    "compare",
    "errors",
    "factors",
    "gallery",
    "interop",
    "io",
    "krylov",
    "matrix",
    "ordering",
    "preconditioners",
    "properties",
    "report",
    "result",
    "scaling",
    "selection",
    "threads",
    "triangular",
)

__all__ = [
    "IC0",
    "ICT",
    "ILU0",
    "ILUK",
    "ILUT",
    "MILU0",
    "BlockILU0",
    "BlockJacobi",
    "BlockMatrix",
    "DeviceError",
    "Factors",
    "FileError",
    "FineluError",
    "Jacobi",
    "MatrixError",
    "MultilevelILU",
    "ParIC",
    "ParICT",
    "ParILU",
    "ParILUT",
    "ParameterError",
    "Sequence",
    "SingularBlock",
    "SingularMatrix",
    "Solution",
    "SparseLU",
    "Status",
    "StencilMatrix",
    "StructurallySingular",
    "TriangularSolver",
    "UnstableFactors",
    "ZeroPivot",
    "__version__",
    "as_csr",
    "bicg",
    "bicgstab",
    "cg",
    "correct",
    "fgmres",
    "gallery",
    "get_num_threads",
    "gmres",
    "minres",
    "read_matrix",
    "richardson",
    "set_num_threads",
    "solve",
    "spilu",
    "sqmr",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"finelu.{name}")
    if name not in _MODULE_OF:
        from finelu.errors import meant

        text = f"module 'finelu' has no attribute {name!r}."
        raise AttributeError(text + meant(name, __dir__()), name=name, obj=None)  # obj: Python would suggest once more
    value = getattr(import_module(f"finelu.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})
