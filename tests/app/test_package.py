"""The package as a whole: floors of imports, public names, light import, kernels and launchers, documented examples."""

import ast
import pkgutil
import re
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import finelu

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(finelu.__file__).parent
CUDA = PACKAGE / "kernels" / "cuda"
SOURCES = sorted(PACKAGE.rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# (name, module that it is imported from) of the stub, as type checkers read it; of modules the latter is "finelu".
STUB = [
    (alias.asname, node.module)
    for node in ast.parse((PACKAGE / "__init__.pyi").read_text()).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
    if alias.asname == alias.name
]
MODULES = {name for name, module in STUB if module == "finelu"}


def unit(path: Path) -> str:
    """The file or package at the top of finelu that `path` belongs to: "krylov", "matrix", "__init__"."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


FLOORS = runpy.run_path(str(ROOT / "tools" / "floors.py"))


def test_every_error_class_is_a_name_of_the_package():
    kinds = [kind for kind in vars(finelu.errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert finelu.errors.NotConverged in kinds and all(getattr(finelu, kind.__name__) is kind for kind in kinds)


def test_no_statement_comes_after_the_end_of_its_block():
    over = ast.Return, ast.Raise, ast.Continue, ast.Break
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                early = block[:-1] if isinstance(block, list) else []
                assert not any(isinstance(line, over) for line in early), f"{path}:{getattr(node, 'lineno', 1)}"


def test_every_room_imports_as_the_architecture_page_has_it():
    assert FLOORS["violations"]() == []


def test_an_import_upwards_is_found(monkeypatch):
    tool = FLOORS["violations"].__globals__
    true = tool["imports"]
    upwards = {"matrix.door": {"krylov.cg"}, "kernels.cpu.fill": {"kernels.cpu.stencil"}}
    monkeypatch.setitem(tool, "imports", lambda name, **deep: true(name, **deep) | upwards.get(name, set()))
    lines = "\n".join(FLOORS["violations"]())
    assert "matrix.door (floor 9) imports krylov.cg (floor 13)" in lines and "in a circle" in lines
    assert "kernels.cpu.fill imports kernels.cpu.stencil, which the catalogue does not name" in lines


def test_the_picture_of_the_floors_is_that_of_the_imports():
    assert (ROOT / "docs" / "pictures" / "floors.svg").read_text() == FLOORS["picture"]()


def test_public_names_exist_and_are_listed():
    for name in finelu.__all__:
        assert getattr(finelu, name) is not None
    names = {name for name, _ in STUB}
    assert names | {"__version__"} == set(dir(finelu))
    assert names - MODULES | {"gallery", "__version__"} == set(finelu.__all__)
    assert len(finelu.__all__) == len(set(finelu.__all__)) and len(STUB) == len(names)


@pytest.mark.parametrize(("name", "module"), STUB)
def test_a_public_name_is_what_the_stub_says(name, module):
    expected = import_module(f"finelu.{name}") if name in MODULES else getattr(import_module(module), name)
    assert getattr(finelu, name) is expected


def test_the_stub_has_nothing_but_imports_that_export_and_the_version():
    *lines, version = [
        line for line in (PACKAGE / "__init__.pyi").read_text().splitlines() if line[:1] not in ("", "#")
    ]
    assert version == "__version__: str"
    assert lines == [f"from {module} import {name} as {name}" for name, module in STUB]


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'finelu' has no attribute 'ILU9'"):
        _ = finelu.ILU9


@pytest.mark.parametrize(("name", "meant"), [("Ilu0", "ILU0"), ("gmers", "gmres"), ("orderings", "ordering")])
def test_a_name_that_is_misspelt_is_answered_with_the_one_that_is_meant(name, meant):
    with pytest.raises(AttributeError, match=f"Did you mean '{meant}'"):
        getattr(finelu, name)


def test_modules_are_found_without_an_import_of_their_own():
    names = ("ordering", "scaling", "selection", "triangular", "krylov", "interop", "io", "gallery", "matrix")
    code = (
        f"import sys, finelu; before = set(sys.modules); names = {names}; assert set(names) <= set(dir(finelu)); "
        "assert all(f'finelu.{name}' not in before for name in names); "
        "print([getattr(finelu, name).__name__ for name in names], finelu.interop.scipy.spilu is finelu.spilu)"
    )
    expected = f"{[f'finelu.{name}' for name in names]} True"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == expected


def test_every_module_that_is_not_hidden_is_offered_for_completion():
    hidden = {
        "arithmetic",
        "compiling",
        "deadline",
        "device",
        "drawing",
        "explained",
        "foreign",
        "machine_code",
        "page",
        "processes",
        "progress",
        "recent",
        "registry",
        "validation",
    }
    private = {"__init__", "__main__", "cli", "kernels", "start", "warmup", *hidden}
    assert {unit(path) for path in SOURCES} - private == MODULES


def test_a_star_import_brings_no_module_but_the_gallery():
    assert MODULES & set(finelu.__all__) == {"gallery"}


def test_modules_of_interop_are_found_and_say_what_they_need():
    assert {"jax", "petsc", "pyamg", "scipy", "torch"} <= set(dir(finelu.interop))
    with pytest.raises(AttributeError, match="Did you mean 'scipy'"):
        _ = finelu.interop.scipyi
    code = "import sys; sys.modules['torch'] = None; import finelu; print(hasattr(finelu.interop, 'torch')); " + (
        "finelu.interop.torch"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n" and "pip install 'finelu[torch]'" in done.stderr.splitlines()[-1]


def test_every_recipe_is_public():
    from finelu.preconditioners import RECIPES

    for recipe in RECIPES.values():
        assert getattr(finelu, recipe.__name__) is recipe


@pytest.mark.parametrize("statement", ["import finelu", "import finelu.cli"])
def test_import_is_light(statement):
    heavy = ["numba", "scipy", "cupy", "matplotlib"]
    code = f"import sys; {statement}; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize("folder", [CUDA, ROOT / "benchmarks" / "papers"], ids=str)
def test_every_kernel_has_a_launcher_and_instances(folder):
    tool = runpy.run_path(str(ROOT / "tools" / "compile_cuda.py"))
    instances = runpy.run_path(str(tool["TABLES"][folder]))["INSTANCES"]
    stems = [str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.cu")]
    assert stems
    assert tool["missing_instances"](stems, instances) == []
    launchers = [ast.parse(path.read_text()) for path in folder.rglob("*.py") if path.stem != "instances"]
    launched = {node.value for tree in launchers for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    for stem in stems:
        names = [stem, *tool["kernel_names"](stem)]
        unused = [name for name in names if name not in launched]
        assert not unused, f"no launcher in {folder} names {unused} of {stem}.cu"


def examples():
    """Each block of code, and the block ```text right after it, which shows its output; None where there is none."""
    blocks = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
    for page in PAGES:
        for k, (code, shown) in enumerate(blocks.findall(page.read_text())):
            yield pytest.param(code, shown or None, id=f"{page.stem}-{k}")


def words_and_counts(printed):
    """The output without its line breaks, the sentence of times, and the figures that rounding and clocks change."""
    lines = re.sub(r"^Time: .*? s\.$", "", printed, flags=re.MULTILINE | re.DOTALL)
    without_times = re.sub(r"\b[\d.]+(e[+-]?\d+)? s\b", "# s", lines)
    alone = " ".join(without_times.split()).replace(" Expected # s, took # s.", "")  # which a busy machine adds
    return re.sub(r"-?\d+(\.\d*)?e[+-]?\d+|-?\d+\.\d+", "#", alone)


MANY = re.compile(r"\b\d{3,}(?= iterations)")  # which another processor's rounding changes by one or two


def assert_alike(printed, shown):
    """The output is that of the page, except for times, rounding, and 1 percent of MANY iterations."""
    printed, shown = words_and_counts(printed), words_and_counts(shown)
    assert MANY.sub("many", printed) == MANY.sub("many", shown)
    for found, expected in zip(MANY.findall(printed), MANY.findall(shown), strict=True):
        assert abs(int(found) - int(expected)) <= 0.01 * int(expected), (found, expected)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_line_of_code_is_wider_than_a_page_shows(page):
    inside, wide = False, []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            inside = not inside
        elif inside and len(line) > 85:
            wide.append(f"{number}: {line}")
    assert not wide


@pytest.mark.parametrize(("code", "shown"), list(examples()))
def test_documented_examples_run_and_print_what_the_page_shows(code, shown, own_recipes, own_methods, capsys):
    exec(code, {})
    if shown is not None:
        assert_alike(capsys.readouterr().out, shown)


def test_words_and_counts_of_an_output_are_compared_and_times_are_not():
    page = "Converged: 36 iterations, ||b - A x|| =\n    1.8e-06.\nTime: 0.4 s:\n   all else 0 s.\nin 0.03 s"
    again = "Converged: 36 iterations, ||b - A x|| = 1.9e-06.\nTime: 1 s: kernels 0.2 s.\nin 2 s\n"
    assert words_and_counts("1. solved. Expected 0.01 s,\n   took 2e-1 s.") == words_and_counts("1. solved.")
    assert words_and_counts(page) == words_and_counts(again) == "Converged: 36 iterations, ||b - A x|| = #. in # s"
    assert words_and_counts(page.replace("36", "35")) != words_and_counts(again)


def test_of_many_iterations_one_percent_may_differ():
    page = "ILU0(): 148 iterations, converged; IC0(): 20 iterations"
    assert_alike(page.replace("148", "149"), page)
    for other in ("151 iterations", "148 rows", "99 iterations"):
        with pytest.raises(AssertionError):
            assert_alike(page.replace("148 iterations", other), page)
    with pytest.raises(AssertionError):
        assert_alike(page.replace("20", "21"), page)


def places(page):
    """The names by which a link finds the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target, _, place in re.findall(r"\]\((?!http)([^)#]*)(#([^)]+))?\)", page.read_text()):
            linked = page.parent / target if target else page
            assert linked.exists(), f"{page.name} links to {target}"
            assert not place or place in places(linked), f"{page.name} links to {place} in {linked.name}"


TO_OVERRIDE = {  # private names of base classes that their subclasses are to give anew
    "Factors": {"_apply", "_apply_into", "_bound", "_refresh", "_updated_at_once"},
    "BlockFactors": {"_apply", "_checked", "_solve"},
    "BlockProducts": {"_at_one_place", "_stored"},
    "Elimination": {"_analyse", "_broken", "_eliminate", "_queue", "_queues"},
    "ILU0Elimination": {"_analyse", "_broken", "_start", "_values"},
    "RefinedFactors": {"_solved"},
    "Solution": {"_label_of_history", "_norms"},
    "SolutionOfColumns": {"_parts"},
    "_Plan": {"_solve"},
    "_Queued": {"_queue"},
}


def test_no_class_takes_a_private_name_of_its_base_by_chance():
    met = set()
    for module in pkgutil.walk_packages(finelu.__path__, "finelu."):
        try:
            members = vars(import_module(module.name)) if not module.name.endswith("__main__") else {}
        except ImportError:  # of an extra that is not installed
            continue
        for kind in members.values():
            if not (isinstance(kind, type) and kind.__module__ == module.name):
                continue
            for base in kind.__mro__[1:]:
                same = {n for n in vars(kind).keys() & vars(base).keys() if n[0] == "_" != n[1] and n != "_abc_impl"}
                if base.__module__.startswith("finelu."):
                    chance = same - TO_OVERRIDE.get(base.__name__, set())
                    assert not chance, f"{kind.__name__} and {base.__name__} both have {', '.join(chance)}"
                    met |= {(base.__name__, name) for name in same}
    assert met
