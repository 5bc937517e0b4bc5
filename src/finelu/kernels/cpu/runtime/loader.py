"""Machine code that Numba made before becomes a function, without its compiler: 0.2 ms a kernel, 5 ms for the first.

Numba itself prepares its compiler before it loads anything, which takes 0.3 s, and then 5 ms a kernel.
"""

from __future__ import annotations

import ctypes
import pickle
import sys
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import llvmlite.binding as llvm
from numba import _dynfunc
from numba.core.base import _load_global_helpers
from numba.core.externals import c_math_functions
from numba.core.runtime import _nrt_python

from finelu.kernels.cpu.runtime.store import Damaged, Record


@cache
def _engine() -> llvm.ExecutionEngine:
    """The engine of all that is loaded here, with the symbols of Python and Numba that machine code may ask for."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    _load_global_helpers()
    c_math_functions.install(None)
    for name, address in _nrt_python.c_helpers.items():
        llvm.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine()
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


class Loaded(NamedTuple):
    """entry : the compiled form, for Python.  address : of the code, for other code.  types : as in the record."""

    entry: Callable
    address: int
    types: bytes


def load(record: Record, function: Callable) -> Loaded:
    """The compiled form of a plain function, by one thread at a time. Its arguments must have the types of the record:
    nothing looks at them. Raises Damaged where a symbol is missing."""
    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(record.code))
    engine.finalize_object()
    constants_of = pickle.loads(record.constants)
    entry, address = map(engine.get_function_address, (record.entry, record.function))
    if not (entry and address and all(map(engine.get_global_value_address, constants_of))):
        raise Damaged("a symbol is missing")
    environments = []
    for symbol, constants in constants_of.items():
        environment = _dynfunc.Environment(function.__globals__)
        environment.consts.extend(constants)
        place = ctypes.c_void_p.from_address(engine.get_global_value_address(symbol))
        place.value = id(environment)  # which the function below keeps alive
        environments.append(environment)
    module = sys.modules[function.__module__]
    doc = function.__doc__ or ""
    made = _dynfunc.make_function(module, function.__name__, doc, entry, environments[0], environments)
    return Loaded(made, address, record.types)
