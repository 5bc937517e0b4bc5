"""Old dotted names: each still gives what has moved, says where to, and says it once."""

import subprocess
import sys
import warnings
from importlib import import_module

import pytest

import finelu
from finelu._moved import MODULES, NAMES

OPTIONAL = ("petsc",)  # modules that need a package which may be missing


def imported(name):
    if any(word in MODULES.get(name, name) for word in OPTIONAL):
        pytest.importorskip("petsc4py")
    sys.modules.pop(name, None)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        module = import_module(name)
    return module, [w for w in seen if w.category is DeprecationWarning and name in str(w.message)]


@pytest.mark.parametrize("old", MODULES)
def test_an_old_module_gives_the_attributes_of_the_new_one(old):
    module, seen = imported(old)
    new = import_module(MODULES[old])
    assert len(seen) == 1 and MODULES[old] in str(seen[0].message)
    public = [name for name in vars(new) if not name.startswith("_")]
    assert public and all(getattr(module, name) is getattr(new, name) for name in public)
    assert set(public) <= set(dir(module))
    with pytest.raises(AttributeError):
        _ = module.no_such_name


@pytest.mark.parametrize("old", NAMES)
def test_an_old_function_is_the_new_one(old):
    home, _, name = old.rpartition(".")
    if any(word in NAMES[old] for word in OPTIONAL):
        pytest.importorskip("petsc4py")
    new_home, _, new_name = NAMES[old].rpartition(".")
    assert getattr(import_module(home), name) is getattr(import_module(new_home), new_name)


def test_the_documented_paths_of_before_work_in_a_new_process():
    code = (
        "import warnings; warnings.simplefilter('ignore'); import finelu; from finelu.solver import solve; "
        "from finelu.sequence import Sequence; from finelu.stencil import StencilMatrix; "
        "from finelu.blocks import BlockMatrix; from finelu.interop.superlu import spilu; "
        "assert solve is finelu.solve and Sequence is finelu.Sequence and spilu is finelu.spilu; "
        "assert StencilMatrix is finelu.StencilMatrix and BlockMatrix is finelu.BlockMatrix; "
        "assert finelu.solver.solve is solve and finelu.interop.superlu.spilu is spilu"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_never_was_is_still_not_found():
    with pytest.raises(ImportError):
        import_module("finelu.no_such_module")
    with pytest.raises(AttributeError):
        _ = finelu.preconditioners.no_such_recipe


def test_who_asks_for_an_old_module_as_an_attribute_is_warned():
    code = "import finelu\nfinelu.solver.solve\nfinelu.interop.superlu.spilu"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stderr.count("DeprecationWarning: finelu.") == 2


def test_a_star_import_of_an_old_module_brings_the_names_of_the_new_one():
    code = "from finelu.blocks import *\nBlockMatrix"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
