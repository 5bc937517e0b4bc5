"""The public names of the families of kernels, read from their sources: nothing is imported, on no device."""

import ast
from functools import cache
from pathlib import Path

import finelu.kernels

KERNELS = Path(finelu.kernels.__file__).parent


@cache
def tree(path):
    return ast.parse(path.read_text())


def module_of(form, family):
    return KERNELS / form / f"{family}.py"


def public(form, family):
    """name -> its definition, or None where it is imported and listed in __all__."""
    path = module_of(form, family)
    if not path.exists():
        return {}
    body = tree(path).body
    lists = [n.value for n in body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"]
    found = dict.fromkeys(name for names in lists for name in ast.literal_eval(names))
    kinds = ast.FunctionDef, ast.ClassDef
    return found | {n.name: n for n in body if isinstance(n, kinds) and not n.name.startswith("_")}
