"""The catalogue of kernels is true: names, arguments, imports; files and kernels that are named exist."""

import ast
import re
import subprocess
import sys
from functools import cache
from importlib import import_module

import pytest
from families import KERNELS, module_of, public, tree

from finelu.kernels.catalogue import BUILDING_BLOCKS, FAMILIES, FORMS, MISSING, RELATED, USES

MODULES = sorted(f"{path.parent.name}.{path.stem}" for form in FORMS for path in (KERNELS / form).glob("[!_]*.py"))


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


@cache
def called_from_outside():
    """ "family.name" of all that the rest of finelu calls by way of `kernels_for`."""
    paths = [p for p in KERNELS.parent.rglob("*.py") if not any((KERNELS / form) in p.parents for form in FORMS)]
    return {f"{a}.{b}" for path in paths for a, b in re.findall(r"\.(\w+)\.(\w+)", path.read_text()) if a in FAMILIES}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_kernel_has_all_forms_unless_the_catalogue_says_why(family):
    forms = {form: set(public(form, family)) for form in FORMS}
    assert all(ast.get_docstring(tree(module_of(form, family))) for form in FORMS if forms[form])
    missing = {form: set(MISSING.get((form, family), ("", ""))[0].split()) for form in FORMS}
    names = set().union(*forms.values())
    shared = {name for name in names if sum(name in there for there in forms.values()) > 1}
    kernels = shared | {name for name in names if f"{family}.{name}" in called_from_outside()}
    kernels -= set(BUILDING_BLOCKS.get(family, "").split())
    for form in FORMS:
        assert kernels - forms[form] == missing[form], form
        if form != "cuda" and forms[form]:
            module = import_module(f"finelu.kernels.{form}.{family}")
            assert all(callable(getattr(module, name)) for name in forms[form])


def test_what_the_catalogue_says_is_of_families_and_forms_that_there_are():
    assert all(form in FORMS and family in FAMILIES and why for (form, family), (_, why) in MISSING.items())
    assert all(set(arguments) <= set(FORMS) and relation for arguments, relation in RELATED.values())
    named = [key.split(".") for key in RELATED]
    named += [(family, name) for family, names in BUILDING_BLOCKS.items() for name in names.split()]
    assert all(any(name in public(form, family) for form in FORMS) for family, name in named)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_forms_of_a_kernel_take_the_same_arguments_unless_the_catalogue_says_how_they_relate(family):
    forms = {form: public(form, family) for form in FORMS}
    for name in set().union(*forms.values()) - set(BUILDING_BLOCKS.get(family, "").split()):
        nodes = {form: there[name] for form, there in forms.items() if there.get(name) is not None}
        if not nodes:
            continue
        first, others = next(iter(nodes)), RELATED.get(f"{family}.{name}", ({}, ""))[0]
        for form, node in nodes.items():
            expected = others[form].split() if form in others else arguments(nodes[first])
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
            assert sideways == set(USES[form].get(family, "").split()), path


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
