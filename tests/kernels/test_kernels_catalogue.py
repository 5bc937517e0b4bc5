"""The catalogue of kernels is true: names, arguments, imports; files and kernels that are named exist."""

import ast
import re
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import finelu.kernels
from finelu.kernels.catalogue import FAMILIES, FORMS

KERNELS = Path(finelu.kernels.__file__).parent
MODULES = sorted(f"{path.parent.name}.{path.stem}" for form in FORMS for path in (KERNELS / form).glob("[!_]*.py"))


@cache
def tree(path):
    return ast.parse(path.read_text())


def module_of(form, family):
    return KERNELS / form / f"{family}.py"


def arguments(node):
    """The names of the arguments of a function, or of the constructor of a class; *name: by keyword only."""
    if isinstance(node, ast.ClassDef):
        constructors = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        return arguments(constructors[0])[1:] if constructors else []
    names = node.args
    return [a.arg for a in names.posonlyargs + names.args] + [f"*{a.arg}" for a in names.kwonlyargs]


def methods(node):
    if not isinstance(node, ast.ClassDef):
        return {}
    found = {n.name: arguments(n) for n in node.body if isinstance(n, ast.FunctionDef)}
    return {name: names for name, names in found.items() if not name.startswith("_")}


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


def imported(path):
    """The modules of finelu that a module imports, as "cpu.levels", "cpu.runtime.jit", "monitor"."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("finelu.kernels"):
            parts = node.module.split(".")[2:]
            found |= {".".join([*parts, alias.name]) for alias in node.names} if len(parts) < 2 else {".".join(parts)}
    return found


def test_every_module_is_a_family_and_the_other_way_round():
    there = {name.split(".")[1] for name in MODULES}
    assert there == set(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_family_has(family):
    entry = FAMILIES[family]
    assert entry.purpose.endswith(".")
    for form in FORMS:
        helpers = entry.helpers.get(form, "").split()
        expected = {name for name, kernel in entry.kernels.items() if form not in kernel.missing} | set(helpers)
        assert set(public(form, family)) == expected, form
        if form != "cuda" and expected:
            module = import_module(f"finelu.kernels.{form}.{family}")
            assert all(callable(getattr(module, name)) for name in expected)
    for kernel in entry.kernels.values():
        assert all(kernel.missing.values()) and set(kernel.missing) < set(FORMS)
        assert not kernel.arguments or kernel.relation


@pytest.mark.parametrize("family", FAMILIES)
def test_the_forms_of_a_kernel_take_the_same_arguments_unless_the_catalogue_says_how_they_relate(family):
    for name, kernel in FAMILIES[family].kernels.items():
        nodes = {form: public(form, family).get(name) for form in FORMS}
        nodes = {form: node for form, node in nodes.items() if node is not None}
        if not nodes:
            continue
        first = next(iter(nodes))
        for form, node in nodes.items():
            expected = kernel.arguments[form].split() if form in kernel.arguments else arguments(nodes[first])
            assert arguments(node) == expected, (name, form)
            assert methods(node) == methods(nodes[first]), (name, form)


def test_imports_run_downwards_and_sideways_only_where_the_catalogue_says_why():
    for form in FORMS:
        runtime = [path for path in (KERNELS / form / "runtime").glob("*.py") if path.stem != "__init__"]
        families = {module_of(form, family): family for family in FAMILIES if module_of(form, family).exists()}
        for path in runtime + list(families):
            found = imported(path)
            others = {other for other in FORMS if other != form}
            assert not {name for name in found if name.split(".")[0] in others}, path
            sideways = {name.split(".")[1] for name in found if name.startswith(f"{form}.") and ".runtime" not in name}
            family = families.get(path)
            uses = FAMILIES[family].uses if family else {}
            assert sideways == {other for where, other in uses if where == form}, path
            assert all(uses.values())


def test_nothing_imports_in_a_circle():
    files = {p: p.relative_to(KERNELS).with_suffix("").as_posix().replace("/", ".") for p in KERNELS.rglob("[!_]*.py")}
    ways = {name: imported(path) & set(files.values()) for path, name in files.items()}
    while leaves := [name for name, way in ways.items() if not way]:
        for name in leaves:
            del ways[name]
        ways = {name: way - set(leaves) for name, way in ways.items()}
    assert not ways


def test_the_catalogue_is_there_without_numba_and_cupy():
    code = "import finelu.kernels.catalogue, sys; print({'numba', 'cupy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_files_and_specifications_that_a_source_names_exist():
    for path in (path for kind in ("py", "cu", "cuh") for path in KERNELS.rglob(f"*.{kind}")):
        for file, name in re.findall(r"kernels/([\w/]+\.(?:py|cu|cuh))(?::(\w+))?", path.read_text()):
            named = KERNELS / file
            assert named.exists(), (path.name, file)
            if name:
                assert f"def {name}(" in named.read_text() or f"class {name}" in named.read_text(), (path.name, name)


LAUNCH = re.compile(r'(?:kernel|over_elements|single_thread)\(\s*"([\w/]+)",\s*"(\w+)"')


def test_kernels_that_launchers_name_are_in_the_cu_file():
    found = set()
    for path in (KERNELS / "cuda").rglob("*.py"):
        found |= set(LAUNCH.findall(path.read_text()))
        found |= {(path.stem, name) for name in re.findall(r'\b_(?:all|one|rows)\("(\w+)"', path.read_text())}
    assert len(found) > 80
    for stem, function in found:
        source = (KERNELS / "cuda" / f"{stem}.cu").read_text()
        for header in re.findall(r'#include "([\w/]+\.cuh)"', source):
            source += (KERNELS / "cuda" / header).read_text() if header != "runtime/constants.cuh" else ""
        assert re.search(rf"__global__[^;{{]*\b{function}\(", source), (stem, function)
