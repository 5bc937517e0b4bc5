"""The documentation: pages are reached, pictures are small and shown, figures are those of the records."""

import ast
import inspect
import math
import re
import runpy
import sys
from collections import Counter
from enum import Enum
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from checks import CLIENTS, documented
from conftest import real_matrix

import finelu

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import figures, front, losses  # noqa: E402
from benchmarks import records as records_module  # noqa: E402
from benchmarks.claims import calls, robustness_tables, schwarz, sizes, solve_tables  # noqa: E402
from benchmarks.harness import RESULTS  # noqa: E402
from benchmarks.harness.record import ENDING, Record, Run, read  # noqa: E402
from benchmarks.papers import fgbilu_tables, ilupack_tables, parilut_tables  # noqa: E402

DOCS = ROOT / "docs"
SOURCE = Path(finelu.__file__).resolve().parents[1]
PICTURES = DOCS / "pictures"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
GUIDE = (DOCS / "choose.md").read_text()
GPU = (DOCS / "gpu.md").read_text()
README = (ROOT / "README.md").read_text()
MEASURED = (DOCS / "measured.md").read_text()
INSIDE = (DOCS / "inside.md").read_text()
MULTIGRID = "elliptic-cpu-16-threads-intel-xeon-16-cores-2026-11-28"
ENDS = "solve-2-core-amd-epyc-shared-2026-11-27"  # how `solve` ends on each real matrix


@pytest.fixture(scope="module")
def measured():
    """The script docs/pictures/measured.py as a dict of its names."""
    pytest.importorskip("matplotlib")
    sys.path.insert(0, str(PICTURES))
    try:
        yield runpy.run_path(str(PICTURES / "measured.py"))
    finally:
        sys.path.remove(str(PICTURES))


def test_every_page_is_in_the_contents_and_in_the_guide():
    listed = set(re.findall(r"([\w/-]+\.md)", (ROOT / "mkdocs.yml").read_text()))
    executed = {f"notebooks/{path.stem}.md" for path in (DOCS / "notebooks").glob("*.py")}
    assert listed == {page.name for page in DOCS.glob("*.md")} | executed
    index = (DOCS / "index.md").read_text()
    linked = set(re.findall(r"\(([\w/-]+\.md)\)", re.sub(r"(notebooks/[\w-]+)\.py", r"\1.md", index)))
    assert linked | {"index.md"} == listed


def described():
    """The names after ::: on all pages, which the documentation of the API is made from."""
    return [name for page in PAGES for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)]


def test_the_public_names_are_all_in_the_api():
    last = {name.rpartition(".")[2] for name in described()}
    elsewhere = {"__version__", "gallery", *vars(finelu.errors)}
    assert set(finelu.__all__) - last <= elsewhere


def described_text(name):
    """The docstring of a public name, of its bases, and of the names with the same arguments ("as in `gmres`")."""
    thing = getattr(finelu, name)
    bases = thing.__mro__ if isinstance(thing, type) else (thing,)
    text = "\n".join(inspect.getdoc(base) or "" for base in bases if base is not object)
    for other in re.findall(r"(?:[Aa]rguments|[Pp]arameters) (?:are those|as) (?:of|in) `?(?:finelu\.)?(\w+)", text):
        text += described_text(other)
    return text


def test_the_reference_describes_every_parameter_of_functions_and_recipes():
    missing = []
    for name in finelu.__all__:
        thing = getattr(finelu, name)
        if not callable(thing) or (isinstance(thing, type) and issubclass(thing, Exception | Enum)):
            continue
        text, own = described_text(name), {"self", "cls", "args", "kwargs"}
        parameters = set(inspect.signature(thing).parameters) - own
        missing += [f"{name}({each})" for each in sorted(parameters) if not re.search(rf"\b{each}\b", text)]
    assert missing == []


def test_the_calls_at_the_heads_of_the_pages_have_the_parameters_and_defaults_of_the_code():
    recipes = {name for name, thing in vars(finelu.preconditioners).items() if hasattr(thing, "factor")}
    found = set()
    for page in PAGES[1:]:
        lines = page.read_text().splitlines()
        head = "\n".join(lines if page.stem == "solve-rules" else lines[:9])
        calls = re.findall(r"^`([A-Za-z]\w*)\(([^`]*)\)`", re.sub(r"`\n`", " ", head), re.MULTILINE)
        for name, arguments in calls:
            if name not in recipes | {"solve", "Sequence"}:
                continue
            parameters = list(inspect.signature(getattr(finelu, name)).parameters.values())
            shown = ast.parse(f"def call({arguments.removeprefix('*, ')}): ...").body[0].args
            names = [argument.arg for argument in (*shown.args, *shown.kwonlyargs)]
            defaults = [ast.literal_eval(value) for value in (*shown.defaults, *shown.kw_defaults)]
            assert names == [p.name for p in parameters], f"{page.name}: {name}"
            assert defaults == [p.default for p in parameters if p.default is not p.empty], f"{page.name}: {name}"
            found.add(name)
    assert {"solve", "Sequence", "ILU0", "MultilevelILU", "Schwarz"} <= found and len(found) > 15


def test_the_rules_of_solve_have_a_row_for_each_argument():
    assert set(inspect.signature(finelu.solve).parameters) - {"A", "b"} <= set(
        first_cells("solve-rules", "## Arguments")
    )


@pytest.mark.parametrize("name", described())
def test_what_the_api_names_can_be_imported(name):
    module, found = name, None
    while not any((SOURCE / path).exists() for path in (f"{slashed(module)}.py", f"{slashed(module)}/__init__.py")):
        module, _, found = module.rpartition(".")
    if module.startswith("finelu.interop."):
        package = module.rpartition(".")[2]
        if package in ("torch", "jax", "pyamg", "fipy", "lineax", "pymatsolver", "sfepy"):
            pytest.importorskip(package)
    thing = import_module(module)
    if found:
        assert getattr(thing, found).__doc__
    else:  # a module, and not a function of its name in the package above
        above, _, own = module.rpartition(".")
        assert getattr(import_module(above), own) is thing


def test_lines_of_docstrings_that_matter_stay_lines():
    pytest.importorskip("griffe")
    legible = runpy.run_path(str(DOCS / "docstrings.py"))["legible"]
    text = "A : (n, n), one\n    of many\nb : (n,).\nReturns x:\n- first,\n  and\n- second\nThen more."
    assert legible(text) == (
        "A : (n, n), one\n    of many  \nb : (n,).  \nReturns x:\n\n- first,\n  and\n- second\n\nThen more."
    )


def slashed(module):
    return module.replace(".", "/")


def test_every_recipe_has_a_page_and_stands_in_the_guide():
    from finelu.preconditioners import OWN  # other tests register others

    heads = "\n".join("\n".join(page.read_text().split("\n")[:8]) for page in PAGES[1:])
    for recipe in OWN:
        assert re.search(rf"`{recipe.__name__}[(`]", heads), f"no page begins with {recipe.__name__}"
        assert f"{recipe.__name__}(" in GUIDE


def test_every_page_of_a_method_and_every_guide_has_a_picture_or_an_example_that_runs():
    contents = (ROOT / "mkdocs.yml").read_text()
    for section in ("Guides:", "Methods:"):
        pages = re.findall(
            r"^      - (\w[\w-]*\.md)$", re.split(r"^  - ", contents.partition(section)[2], flags=re.M)[0], re.M
        )
        assert len(pages) > 10
        for page in set(pages) - {"deployment.md"}:  # which has commands
            text = (DOCS / page).read_text()
            assert "```python" in text or "](pictures/" in text, page


def test_every_formula_becomes_mathml():
    pytest.importorskip("latex2mathml")
    formulas = runpy.run_path(str(DOCS / "formulas.py"))
    shown = 0
    for page in PAGES[1:]:
        found = formulas["on_page_markdown"](page.read_text())
        assert "```math" not in found, page.name
        shown += found.count("<math ")
    assert shown > 20
    with pytest.raises(ValueError, match="no MathML is known"):
        formulas["mathml"](r"\unheardof{x}")


def first_cells(page, begin=""):
    """The names in code in the first cells of the tables of docs/<page>.md, from the text `begin` on."""
    text = (DOCS / f"{page}.md").read_text()
    cells = re.findall(r"^\| ([^|]+) \|", text[text.index(begin) :], re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`(\w+)[`(]", cell)]


def test_every_status_error_and_field_has_a_row():
    from finelu.result import Attempt, Certificate, LeastSquaresSolution, Solution

    rows = first_cells("status")
    assert set(finelu.Status.__members__) <= set(rows)
    kinds = [thing for thing in vars(finelu.errors).values() if isinstance(thing, type)]
    errors = {kind.__name__ for kind in kinds if issubclass(kind, finelu.FineluError)}
    assert errors - {"FineluError"} <= set(rows)
    fields = {name for kind in (Solution, Attempt, Certificate) for name in kind.__dataclass_fields__}
    properties = {name for name, thing in vars(Solution).items() if isinstance(thing, property)}
    rows = first_cells("solution")
    assert {name for name in fields | properties if not name.startswith("_")} <= set(rows)
    assert set(rows) <= fields | properties | {"explain"} | set(LeastSquaresSolution.__dataclass_fields__)


def test_every_extra_for_users_has_a_row_in_the_install_page():
    import tomllib

    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    developers = {"test", "lint", "docs", "bench", "release", "nvrtc", "kernels", "interop-test"}
    assert extras - developers == set(first_cells("install")) & extras


def test_the_memory_of_each_recipe_is_that_of_its_page():
    from finelu.compare import held_bytes
    from finelu.preconditioners import OWN

    A = finelu.as_csr(finelu.gallery.problem("poisson7:24"))
    own, b = A.indptr.nbytes + A.indices.nbytes + A.data.nbytes, np.ones(A.shape[0])
    table = re.findall(
        r"^\| `(\w+)\(\)`[\w ]* \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", (DOCS / "memory.md").read_text(), re.M
    )
    elsewhere = {"BlockILU0", "CPR", "ICNE", "SparseLU"}  # the installation decides the order of the last
    assert {name for name, *_ in table} == {recipe.__name__ for recipe in OWN} - elsewhere
    for name, *cells in table:
        F = getattr(finelu, name)().factor(A)
        found = [F.nnz / A.nnz, held_bytes(F, A) / own]
        for again in range(2):
            if again:
                F.update(A)
            for _ in range(100):  # after which each triangle has a schedule, on one thread, too
                F.solve(b)
        found.append(held_bytes(F, A) / own)
        assert found == pytest.approx([float(cell) for cell in cells], rel=0.02, abs=0.006), name


def test_every_picture_is_small_shown_and_described():
    files = {path.name for path in PICTURES.iterdir() if path.suffix in (".svg", ".png")}
    shown = set()
    for page in PAGES:
        for words, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text()):
            assert len(words.split()) > 4, f"{page.name}: {target} is not described"
            shown.add(Path(target).name)
    assert shown == files
    for name in files:
        assert (PICTURES / name).stat().st_size < 100_000, name


def test_every_picture_has_a_script(measured):
    floors = runpy.run_path(str(ROOT / "tools" / "floors.py"))["PICTURE"].stem
    of_scripts = [runpy.run_path(str(PICTURES / script))["PICTURES"] for script in ("methods.py", "flow.py")]
    made = {*of_scripts[0], *of_scripts[1], *measured["PICTURES"], floors}
    assert {path.stem for path in PICTURES.iterdir() if path.suffix in (".svg", ".png")} == made


def test_a_picture_whose_legend_or_label_is_drawn_upon_is_refused(measured):
    import style

    figure, (axis,) = style.panels()
    axis.plot([0, 1], [0, 1], label="a line")
    assert style.collisions(figure) == []
    axis.legend(loc="center")
    assert style.collisions(figure) == ["the legend lies on the line 'a line'"]
    style.legend_below(axis)
    assert style.collisions(figure) == []
    axis.annotate("a label", (0.5, 0.48))
    with pytest.raises(AssertionError, match="the label 'a label' lies on the line 'a line'"):
        style.write(figure, "refused")
    assert not list(PICTURES.glob("refused*"))


def test_the_iterations_in_the_words_of_the_pictures_are_those_that_they_show():
    def cg(problem, *recipes, ones=True):
        A = finelu.gallery.problem(problem)
        n = A.shape[0]
        b = np.ones(n) if ones else np.random.default_rng(0).standard_normal(n)
        return [finelu.cg(A, b, M=r and r.factor(A), rtol=1e-8, maxiter=2000).iterations for r in recipes]

    none, ic0 = cg("poisson7:24", None, finelu.IC0())
    words = (DOCS / "ic0.md").read_text()
    assert f"{none} iterations without a preconditioner, {ic0} with IC0]" in words
    blocks = finelu.BlockJacobi(block_size=3)
    none, jacobi, block, ic0 = cg("elasticity:8,4,4", None, finelu.Jacobi(), blocks, finelu.IC0(shift=0.1))
    words = (DOCS / "jacobi.md").read_text()
    assert f"none {none}, Jacobi {jacobi}, BlockJacobi {block}, IC0 with a shift {ic0} iterations]" in words
    recipes = (finelu.IC0(), finelu.MILU0(relax=0.95), finelu.MILU0())
    (a, b, c), (x, y, z) = (cg(f"poisson5:{n}", *recipes, ones=False) for n in (16, 256))
    assert f"IC0 {a} to {x}, relax=0.95 {b} to {y}, MILU0 {c} to {z}]" in (DOCS / "milu0.md").read_text()
    assert f"256 x 256 points {x} iterations with IC0, {z} with MILU0" in " ".join(MEASURED.split())
    assert f"| {z} iterations, IC0 takes {x}: [256 x 256 points]" in GUIDE
    recipes = (finelu.IC0(), finelu.Schwarz(coarse=None), finelu.Schwarz())
    drawn = (PICTURES / "schwarz.svg").read_text()
    for recipe, label in zip(recipes, ("IC0()", "parts alone", "Schwarz()"), strict=True):
        A = finelu.gallery.poisson7(16, 16, 16)
        b = np.random.default_rng(0).uniform(-0.5, 0.5, A.shape[0])
        first = finelu.cg(A, b, M=recipe.factor(A), rtol=1e-8).iterations
        found = re.search(rf"{re.escape(label)}: {first}, .*, (\d+) -->", drawn)
        assert found, f"{label}: the picture is not that of this version"
        assert f" {first} to {found[1]}" in (DOCS / "schwarz.md").read_text()


@pytest.mark.gpu
def test_the_example_on_the_gpu_runs():
    from finelu.device import require_gpu

    try:
        require_gpu()
    except finelu.DeviceError as error:
        pytest.skip(str(error))
    for code in documented("gpu", "gpu") + documented("../README", "gpu"):
        exec(code, {})


def test_code_that_needs_a_package_or_a_gpu_is_run_by_a_test():
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "app").glob("*.py"))
    run = set(re.findall(r'documented\("(?:\.\./)?([\w-]+)", "(\w+)"\)', tests))
    run |= {("programs", package) for package in CLIENTS} | {("multiblock", "mpi")}  # the latter: multiblock_processes
    shown = {
        (page.stem, name)
        for page in PAGES
        for name in re.findall(r"^```python *\{\.(\w+)\}$", page.read_text(), re.MULTILINE)
    }
    assert shown == run
    assert not any(re.search(r"^```python +[^{]", page.read_text(), re.MULTILINE) for page in PAGES)


def test_the_tables_of_what_was_measured_are_those_of_the_records():
    assert figures.outdated() == {}, "python -m benchmarks.figures writes them"


def test_the_readme_is_short_and_its_tables_are_small():
    assert len(README.splitlines()) < 120
    tables = re.findall(r"(?:^\|.*\n)+", README, re.MULTILINE)
    assert len(tables) == 2  # what to call, and what to take instead
    for table in tables:
        head, _, *rows = table.strip().split("\n")
        assert len(rows) <= 6 and head.count("|") - 1 <= 5
    for record in re.findall(r"\]\((benchmarks/results/\S+)\)", README):
        assert (ROOT / record).exists()


def test_the_residuals_of_the_system_at_the_limit_of_precision_are_those_of_its_record():
    found = front.load(front.REGRET).find("fidapex6")
    ours, theirs = (next(r.error for r in found if r.variant == who) for who in ("finelu.solve", "splu"))
    page = " ".join((DOCS / "status.md").read_text().split())
    assert f"‖b − A x‖ is {ours:.0e} ‖b‖".replace("e+", "e") in page
    assert f"has the residual {theirs:.0e} ‖b‖".replace("e+0", "e") in page


def test_the_readme_says_of_spsolve_what_the_guide_shows():
    """The guide asserts it, and its examples are run."""
    guide = (DOCS / "solve.md").read_text()
    assert "assert np.linalg.norm(b - A @ x) > 1e6 * np.linalg.norm(b)" in guide and "n = 200\n" in guide
    page = " ".join(README.split())
    assert "a matrix of 200 rows](docs/solve.md#read-the-answer)" in page and "‖b − A x‖ > 1e6 ‖b‖" in page


def test_how_often_scipy_is_faster_below_10_000_rows_is_that_of_its_record():
    times = figures.load(figures.SOLVE_TIMES)
    above = solve_tables.ratios(times, solve_tables.SCIPY)
    below = [ratio for name, ratio in solve_tables.ratios(times, solve_tables.SCIPY, 0).items() if name not in above]
    counts = f"{sum(ratio < 1 for ratio in below)} of {len(below)} systems"
    assert f"on {counts} (the third row" in " ".join(MEASURED.split())
    older = " †" if figures.SOLVE_TIMES in records_module.reasons() else ""
    assert f"| SciPy, faster on [{counts}](docs/measured.md#calls){older} |" in README


@pytest.mark.parametrize("name", ["bcsstk09", "bcsstk10", "bcsstk14", "bcsstk20", "bcsstk21"])
def test_what_follows_ic0_where_it_fails_is_what_the_guide_says(name):
    A = real_matrix(name)
    b = np.random.default_rng(0).uniform(-0.5, 0.5, A.shape[0])
    for recipe in (finelu.IC0(), finelu.IC0(shift=1e-3)):
        with pytest.raises(finelu.ZeroPivot):
            recipe.factor(A)
    without = {finelu.ICT(): ("bcsstk20", "bcsstk21"), finelu.ICT(shift=2e-3): ("bcsstk20",)}
    for recipe, failing in without.items():
        if name in failing:
            with pytest.raises(finelu.ZeroPivot):
                recipe.factor(A)
        else:
            assert finelu.cg(A, b, M=recipe.factor(A), rtol=1e-8).converged
    page = " ".join(GUIDE.split())
    counts = [("two", "three", "four")[3 - len(failing)] for failing in without.values()]
    assert f"`ICT()` and `cg` solve {counts[0]}, and `ICT(shift=2e-3)` and `cg` {counts[1]}." in page and name in page


def test_the_ratios_of_networks_in_the_guide_are_those_of_the_page_of_sequences():
    guide, page = (" ".join(text.split()) for text in (GUIDE, (DOCS / "sequences.md").read_text()))
    assert "it took 0.95 to 1.15 of the time on networks of 3,503 rows or more, and 1.41 on one of 181" in page
    assert "1.41 times as long with 181 rows, and 0.95 to 1.15 times with 3,503 rows or more" in guide


def test_a_figure_that_drifts_is_seen(tmp_path, meanwhile):
    page = tmp_path / "README.md"
    page.write_text(README.replace("Worst system", "Best system"))
    meanwhile(figures, README=page)
    assert list(figures.outdated()) == [page] and figures.main(["--check"]) == 1
    assert figures.main([]) == 0 and page.read_text() == README
    page.write_text(README.replace("<!-- figures in front", "<!-- "))
    with pytest.raises(finelu.FileError, match="figures in front"):
        figures.outdated()


def test_ilu0_as_called_stands_in_table_and_picture_once_it_is_measured(meanwhile, measured):
    run = Run("calls", {"name": "box", "cpu": "AMD EPYC", "cores": 2}, "2026-01-02")
    for name, ms in (("a", 1.0), ("b", 2.0)):
        run.matrices[name] = {"n": 10, "nnz": 50, "apart": False}
        for work, peers in calls.PEERS.items():
            for variant in (calls.FINELU, *peers):
                who = "finelu" if variant == calls.FINELU else "peer"
                took = ms if who == "finelu" else 3.0
                run.records.append(Record(name, work, "cpu", who, variant, took, error=0.0))
    load = figures.load
    meanwhile(figures, CALLS="calls-box", load=lambda name: run if name == "calls-box" else load(name))
    rows = [row for row in figures.figures() if row.record == "calls-box"]
    assert len(rows) == sum(map(len, calls.PEERS.values()))
    assert all(row.found == {"a": 3.0, "b": 1.5} for row in rows)
    _, called, kernels, *_ = figures.tables().values()
    assert called.count("`calls-box`") == len(rows) and "calls-box" not in kernels
    labels = [label for label, _ in measured["speed_rows"]()]
    assert sum("2 cores, as called" in label for label in labels) == 3
    assert not any("2 cores, kernel" in label for label in labels)


def test_cholesky_factors_take_as_much_memory_as_their_pages_say():
    from finelu.compare import held_bytes

    A = finelu.as_csr(finelu.gallery.problem("poisson7:12"))
    ic0, ilu0, ict, ilut = (
        held_bytes(recipe.factor(A).update(A), A)
        for recipe in (finelu.IC0(), finelu.ILU0(), finelu.ICT(), finelu.ILUT(form="crout"))
    )
    assert ic0 > 0.8 * ilu0 and "It does not save memory" in (DOCS / "ic0.md").read_text()
    assert ict > 0.8 * ilut and "memory is about that of ILUT" in (DOCS / "ict.md").read_text()


def test_every_figure_has_a_peer_a_record_and_its_worst_matrix():
    for row in figures.figures():
        assert row.called and row.peer and row.machine and (RESULTS / f"{row.record}{ENDING}").exists()
        assert row.found and min(row.found.values()) == row.found[row.worst]
        assert row.worst in row.cells("{}")[6]


def test_the_means_of_the_picture_of_speed_are_those_of_the_tables(measured):
    rows, drawn = figures.figures(), (PICTURES / "speed.svg").read_text()
    for label, x in measured["speed_rows"]():
        (row,) = [r for r in rows if list(r.found.values()) == list(x)]
        assert ("kernel" in label) == row.kernel != ("as called" in label), label
        assert ("GPU" in label) == ("H200" in row.machine), label
        for text in (label.splitlines()[0], f"{measured['mean'](x):.2g}x"):
            assert f"<!-- {text} -->" in drawn, "python docs/pictures/measured.py speed draws it anew"


def test_the_counts_of_solve_are_those_of_its_record():
    run = figures.load(figures.SOLVE)
    solves = {name: set() for name in dict.fromkeys(r.variant for r in run.records if r.work == "solve")}
    for r in run.records:
        if r.work == "solve" and not r.detail["status"]:
            solves[r.variant].add(r.matrix)
    ours = solves.pop("finelu.solve")
    assert set().union(*solves.values()) == ours  # what the pages say of all others together
    count, later = len(run.matrices), figures.load(ENDS)
    assert not solve_tables.false_claims(run) and not solve_tables.false_claims(later)
    ends = {r.matrix: r.detail["status"] for r in later.records if r.work == "solve"}
    assert {name for name, status in ends.items() if not status} == ours and len(ends) == count
    unsolved = Counter(status for status in ends.values() if status)
    assert unsolved == {"precision limit": 8, "numerically singular": 1}  # "Eight of the other nine", "One"
    page = " ".join(MEASURED.split())
    assert f"`fl.solve` solves {len(ours)} of the {count}." in page and f"solve the same {len(ours)}." in page
    assert "Eight of the other nine end as `PRECISION_LIMIT`" in page and "found to be numerically singular" in page
    assert page.index("found to be numerically singular") < page.index(f"{ENDS}.md")
    assert f"| solves {len(ours)} of [{count} real systems]" in GUIDE
    guide = " ".join(GUIDE.split())
    assert "does not reach 1e-8 on nine of the 77: eight end at the limit of double precision, one is" in guide
    assert f"not comparable with the {len(ours)} of `fl.solve`" in guide
    assert f"a random b: it solves {len(ours)} of these systems, and [no other library]" in guide
    n = {name: len(found) for name, found in solves.items()}
    assert (
        f"`{figures.SOLVE}`: the same systems, b uniform, 60 s. `fl.solve` solves {len(ours)}, `splu` {n['splu']}, "
        f"`spilu` {n['spilu']}, ilupp's ILU(0) {n['ilupp ILU0']}, pyamg {n['pyamg']}, ilupp's multilevel ILU "
        f"{n['ilupp']}." in page
    )


def test_the_counts_of_what_ilu0_alone_solves_are_those_of_its_record():
    table = (ROOT / "benchmarks/results/solve-all-cpu-2026-11-27.md").read_text()
    factors, solved = (
        int(re.search(rf"^\| {what} +\| (\d+)", table, re.MULTILINE).group(1))
        for what in (r"with an ILU\(0\) or IC\(0\)", "solved by any of them")
    )
    page = " ".join(MEASURED.split())
    assert f"{factors} of these matrices have an ILU(0) or IC(0)." in page
    assert f"BiCGStab solve {solved} of the {factors} to 1e-8 in 2000 iterations" in page


def test_the_times_of_selection_are_those_of_their_record():
    run = read(RESULTS / f"selection-gpu-nvidia-h200-2026-11-21{ENDING}")
    table = (ROOT / "benchmarks/results/selection-gpu-nvidia-h200-2026-11-21.md").read_text()
    exact, approximate = (
        float(re.search(rf"^\| finelu {how} +\|.*\| (\S+) +\|$", table, re.MULTILINE).group(1))
        for how in ("exact", "approximate")
    )
    reading = 8 * 2**28 / run["machine"]["copy GB/s"] / 1e6
    assert f"takes {exact:.2f} ms, the approximate one {approximate:.2f} ms" in MEASURED
    assert f"at the speed of a copy takes {reading:.2f} ms" in MEASURED


def test_the_counts_of_robustness_are_those_of_the_guide(measured):
    count, times = measured["solved"]()
    n, guide = {name: len(found) for name, found in times.items()}, " ".join(GUIDE.split())
    assert f"solves {n['ILU0']} of [{count} real" in guide and f"solves {n['ILUT']} of [the {count}]" in guide
    first = robustness_tables.fastest(times, set().union(*times.values()))
    assert f"the fastest on {first['splu']} of [the {count}]" in guide
    assert f"solves [all {count}](measured.md#systems-solved), b = A x" in guide
    later = (RESULTS / "robustness-2-core-amd-epyc-2026-11-27.md").read_text()
    assert f"of the {count} matrices that anything solves      | > 90% | {count} = 100.0%" in later
    older = f"The record is older than the code: `MultilevelILU` solves [all {count}](measured.md#systems-solved) now."
    assert (older in guide) == (n["MultilevelILU"] < count)


def test_the_crossover_is_that_of_the_gpu_page(measured):
    points = measured["crossover_points"]()
    rows = {m: (size, cpu, gpu) for size, cpu, gpu, m in points}
    kernels, _, _ = GPU.partition("| GMRES(30) with")
    found = re.findall(r"^\| (\w[\w:]*) \| [\d,]+ \| ([\d.,]+) \| ([\d.]+) \| ([\d.]+) \|", kernels, re.MULTILINE)
    assert len(found) == 8
    for name, size, cpu, gpu in found:
        expected = rows[name]
        for text, value in zip((size, cpu, gpu), expected):
            assert float(text.replace(",", "")) == pytest.approx(value, rel=0.02)
    losing = max(size for size, cpu, gpu, _ in points if all(c < g for s, c, g, _ in points if s <= size))
    winning = min(size for size, cpu, gpu, _ in points if all(c > g for s, c, g, _ in points if s >= size))
    assert f"Of {len(points)} matrices the CPU was faster on all with at most {losing:.0f}" in GPU
    assert f"the GPU on all with at least {winning:.0f}" in GPU


def records(name):
    return read(RESULTS / f"{name}{ENDING}")["records"]


def test_the_whole_solves_are_those_of_the_gpu_page():
    run = figures.load("ilupack-nvidia-h200-2026-11-21")
    times = {(r.matrix, r.variant): r.numeric_ms for r in run.records}
    cells = r"^\| (\w+) \| [\d,]+ \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([CG]PU), ([\d.]+) times"
    _, _, whole_solves = GPU.partition("| GMRES(30) with")
    found = re.findall(cells, whole_solves, re.MULTILINE)
    assert len(found) == 7
    for name, setup, cpu, gpu, winner, factor in found:
        before = 1e3 * run.matrices[name]["seconds"]  # on the CPU, for both
        assert float(setup) == pytest.approx(before, rel=0.005)
        assert float(cpu) == pytest.approx(times[name, "a"], rel=0.005)
        assert float(gpu) == pytest.approx(times[name, "c"], rel=0.005)
        whole = (before + times[name, "a"]) / (before + times[name, "c"])
        assert winner == ("GPU" if whole > 1 else "CPU")
        assert float(factor) == pytest.approx(max(whole, 1 / whole), abs=0.006)


def test_the_times_of_parilut_are_those_of_the_pages():
    found = [r for r in records(figures.PARILUT_GPU) if r["work"] == "ParILUT"]
    gpu, cpu = ({r["matrix"]: r["numeric_ms"] for r in found if r["device"] == where} for where in ("gpu", "cpu"))
    ratios = [cpu[name] / gpu[name] for name in gpu]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    assert (
        f"ParILUT {mean:.0f} times as fast as 16 cores of its host: geometric mean of {len(ratios)} matrices, "
        f"{min(ratios):.2f} on the worst" in " ".join(MEASURED.split())
    )
    assert f"{min(ratios):.1f} to {max(ratios):.0f} times as fast as on 16 cores" in " ".join(GPU.split())


def test_the_times_of_block_ilu_are_those_of_the_pages():
    run, grid = figures.load(figures.BLOCKS), figures.GRID
    ours = {"device": "gpu", "variant": "CL, pivoting"}
    two = {"device": "cpu", "who": "finelu", "threads": 2}
    (factor, solve), (by_two, solve_by_two), (slow, slow_solve), (bare, _) = (
        tuple(fgbilu_tables.ms(run, grid, work, **which) for work in ("factor", "solve"))
        for which in (ours, two, {"who": "sequential"}, {"device": "gpu", "variant": "CL"})
    )
    text = " ".join(MEASURED.split())
    peer = fgbilu_tables.ms(run, grid, "factor", who="cusparse")
    assert f"| kernels of a factorization: {factor:.2f} ms; cuSPARSE: {peer:.2f} ms ([65³ cells of 6" in GUIDE
    assert f"The kernel of cuSPARSE takes {peer:.2f} ms a factorization, at its better policy." in text
    assert f"{factor:.2f} ms a factorization (with pivoting, the default) and {solve:.2f} ms a solve" in text
    assert f"takes {by_two:.0f} ms and {solve_by_two:.0f} ms. A sequential code as one writes it takes" in text
    assert f"{slow:.0f} ms and {slow_solve:.0f} ms on one core" in text
    assert f"takes {bare:.2f} ms instead of {factor:.2f} ms" in text
    small, small_gpu = (fgbilu_tables.ms(run, "15x15x15", "overall", **which) for which in (two, ours))
    text = " ".join(GPU.split())
    assert f"takes {small_gpu:.2f} ms for a factorization, four solves and three residuals" in text
    assert f"On two cores of that machine it takes {small:.1f} ms" in text


def test_the_kernels_of_new_values_are_those_of_the_guide():
    run = figures.load(figures.SPINE_GPU)
    where = {"matrix": "poisson7:100", "work": "ilu0", "who": "finelu"}
    numeric = run.one(**where, variant="auto").numeric_ms
    total = run.one(**where, variant="auto once").total_ms
    assert f"part takes {numeric:.2f} ms, and {total:.2f} ms with the analysis" in " ".join(MEASURED.split())
    assert f"| `ILU0` kernels: {numeric:.2f} ms for new values, {total:.2f} ms with analysis. cuSPARSE" in GUIDE
    peers = [r for r in run.records if (r.matrix, r.work, r.who) == ("poisson7:100", "ilu0", "cusparse")]
    numeric, total = (min(getattr(r, ms) for r in peers) for ms in ("numeric_ms", "total_ms"))
    assert f"cuSPARSE at its better setting: {numeric:.2f} and {total:.1f} ms. ([10⁶ rows]" in GUIDE
    assert f"Those of cuSPARSE take {numeric:.2f} ms and {total:.1f} ms, each at its" in " ".join(MEASURED.split())


def test_where_multigrid_is_sooner_is_said_as_in_the_records():
    found = losses.of_elliptic(front.load(MULTIGRID))
    ratios = {name: theirs / ours for name, (ours, theirs, who) in found.items() if "AMGCL" in who}
    sooner = sum(ratio < 1 for ratio in ratios.values())
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    page, guide = (" ".join(text.split()) for text in (MEASURED, GUIDE))
    assert f"answered sooner than `solve` on {sooner} of {len(ratios)} elliptic systems on 16 cores" in page
    worst = min(ratios, key=ratios.get)
    assert f"took {mean:.3f} of the time of `solve` in the geometric mean, and {ratios[worst]:.3f} on {worst}" in page
    assert f"AMGCL took less time than `solve` on {sooner} of {len(ratios)}." in guide
    found = losses.of_elliptic(front.load(MULTIGRID.replace("16", "2")))
    ratios = {name: theirs / ours for name, (ours, theirs, who) in found.items() if "AMGCL" in who}
    sooner, mean = (
        sum(ratio < 1 for ratio in ratios.values()),
        math.exp(sum(map(math.log, ratios.values())) / len(ratios)),
    )
    assert f"On two cores it did on {sooner} of {len(ratios)}, and took {mean:.3f}" in page
    assert f"On two cores it took less time on {sooner} of {len(ratios)}, and {mean:.3f} of the time" in guide
    ours, theirs = (
        front.seconds(sizes.seconds(front.load(front.SIZES_CPU), who)[front.MILLION])
        for who in (sizes.CPU, sizes.AMGCL)
    )
    assert f"`solve` took {ours} and AMGCL {theirs}" in page and f"{ours} on two cores; AMGCL took {theirs}." in guide


def test_the_threads_of_a_row_are_those_of_the_page():
    source, text = (SOURCE / "finelu/kernels/cuda/elimination.py").read_text(), " ".join(INSIDE.split())
    found = re.search(r"NATURAL_THREADS, LEVEL_THREADS = ([\d_]+), ([\d_]+)", source)
    natural, level = map(int, found.groups())
    assert f"32 threads share a row up to {natural // 32:,} rows" in text
    assert f"together have at most {natural / 1e6:.1f} million threads" in text and f"and {level:,} threads" in text
    found = re.search(r"BY_INTERSECTION = (\d+);", (SOURCE / "finelu/kernels/cuda/elimination.cu").read_text())
    assert f"together have at most {found[1]} entries" in text


def test_the_ranking_of_the_papers_variants_is_that_of_its_record():
    record, text = "syncfree-nvidia-h200-2026-11-27", (DOCS / "ilu0.md").read_text()
    ranking = {cells[0]: cells[1:] for cells in rows_of(record, "## Table II:")[2:7]}
    named = {"Total": "all", "Q1": "fewest levels", "Q2": "second quarter", "Q3": "third quarter", "Q4": "most levels"}
    for group, counts in ranking.items():
        assert f"| {named[group]} | {' | '.join(counts)} |" in text
    assert f"of {sum(map(int, ranking['Total']))} matrices" in " ".join(text.split())
    mkl = next(cells for cells in rows_of(record, "## Table I:") if cells[0] == "N")
    assert f"| slower than MKL on one core | {' | '.join(mkl[1:5])} |" in text
    means = next(cells for cells in rows_of(record, "## Table III:") if cells[0] == "average speed-up")
    assert f"over theirs | 1 | {' | '.join(f'{float(x):.2f}' for x in means[1:4])} |" in text


def test_the_gain_of_padding_is_within_that_of_its_record():
    table = (ROOT / "benchmarks/results/elimination-variants-nvidia-h200-2026-11-21.md").read_text()
    gains = [float(b) / float(a) for a, b in re.findall(r"([\d.]+) \(([\d.]+)\)", table)]
    assert f"between {min(gains):.1f} and {max(gains):.1f} times as fast" in " ".join(INSIDE.split())


def test_the_tables_of_scaling_are_those_of_their_records():
    text = (DOCS / "scaling.md").read_text()
    two, many = (
        read(RESULTS / f"petsc-scaling-{name}{ENDING}")["results"]
        for name in ("2-core-intel-xeon-2026-11-21", "nvidia-h200-x2-2026-11-22")
    )
    same = [r["petsc_iterations"] == r["finelu_iterations"] for r in two["agreement"]
            if r["petsc_reason"] > 0 < r["finelu_reason"]]  # fmt: skip
    assert all(same) and f"in all {len(same)} cases" in text
    names = {"grid:24": "convection-diffusion 24³", "grid:64": "convection-diffusion 64³"}
    found = {(r["matrix"], r["ranks"], r["outer"]): r for r in two["agreement"]}
    for matrix in dict.fromkeys(r["matrix"] for r in two["agreement"]):
        cells = []
        for ranks in (1, 2, 4):
            counts = [found[matrix, ranks, outer] for outer in ("asm", "bjacobi")]
            done = all(r["finelu_reason"] > 0 for r in counts)
            cells.append(" / ".join(str(r["finelu_iterations"]) for r in counts) if done else "over 1000")
        assert f"| {names.get(matrix, matrix)} | {' | '.join(cells)} |" in text
    for r in many["overhead"]:
        rows, solve, apply = r["n"], r["solve_us"], r["apply_us"]
        assert f"| {rows:,} | {solve:.3g} us | {apply:.3g} us |" in text
    for cores in (1, 2, 4, 8, 16):
        theirs, ours = (
            next(r for r in many["weak cpu"] if (r["outer"], r["who"], r["ranks"]) == ("asm", who, cores))
            for who in ("petsc ilu", "finelu ilu0")
        )
        row = re.search(rf"^\| {cores} \| ([\d.]+) \| [\d.]+ \| ([\d.]+) \| [\d.]+ \| ([\d.]+) \|", text, re.MULTILINE)
        expected = (theirs["ms_an_iteration"], ours["ms_an_iteration"], ours["pc_ms"])
        assert [float(x) for x in row.groups()] == pytest.approx(expected, rel=0.008)
    for name, k in (("ILU(0)", 0), ("SparseLU", 2)):
        for parts in (2, 4, 8, 16, 32, 64):
            counts = [r["iterations"] for r in two["subdomains"] if (r.get("subdomains"), r["recipe"]) == (parts, name)]
            row = re.search(
                rf"^\| {parts} \| (\d+, \d+, \d+) \| (\d+, \d+, \d+) \| (\d+, \d+, \d+) \|$", text, re.MULTILINE
            )
            assert row.groups()[k] == ", ".join(map(str, counts))


def test_the_iterations_over_processes_are_those_of_their_record():
    text, record = (DOCS / "scaling.md").read_text(), "petsc-scaling-2-core-amd-epyc-2026-11-27"
    names = ("Schwarz", "Schwarz on one", "Schwarz in each", "ILU0, asm", "gamg")
    lines = read(RESULTS / f"{record}{ENDING}")["results"]["coupled"]
    assert f"`{record}`" in text and [line["ranks"] for line in lines] == 2 * [1, 2, 4, 8, 16]
    for line in lines:
        counts = [line[name]["iterations"] for name in names]
        assert f"| {line['kind']} | {line['ranks']} | {line['rows']:,} | {' | '.join(map(str, counts))} |" in text
        assert counts[0] <= 1.1 * counts[1]
    one, many = lines[0], lines[4]
    ends = {name: (one[name]["iterations"], many[name]["iterations"]) for name in names}
    page = " ".join((DOCS / "elliptic.md").read_text().split())
    assert f"1 to 16 processes takes {ends['Schwarz'][0]} to {ends['Schwarz'][1]} iterations" in page
    assert f"coupled by nothing, {' to '.join(map(str, ends['Schwarz in each']))}" in page
    assert f"ILU(0) with asm {' to '.join(map(str, ends['ILU0, asm']))}" in page
    assert f"the smoothed aggregation of PETSc's `gamg` takes {many['gamg']['iterations']}" in page
    boomer = "petsc-scaling-2-core-amd-epyc-debian-2026-11-27"
    (line,) = read(RESULTS / f"{boomer}{ENDING}")["results"]["multigrid"]
    text = f"BoomerAMG takes {line['BoomerAMG']['iterations']} on {line['rows']:,} rows (`{boomer}`)"
    assert text in page


@pytest.mark.parametrize("record", ["64-2026-11-26", "96-2026-11-27", "128-2026-11-27"])
def test_the_times_of_grids_of_several_blocks_are_those_of_their_records(record):
    text, edge = " ".join((DOCS / "scaling.md").read_text().split()), record.partition("-")[0]
    assert f"`multiblock-scaling-nvidia-h200-x2-{record}`" in text
    found = read(RESULTS / f"multiblock-scaling-nvidia-h200-x2-{record}{ENDING}")["results"]
    (one, two), (whole, halves) = found["weak"], found["strong"]
    cells = []
    for what, digits in (("correction_ms", 3), ("factor_ms", 2)):
        times = (f"{line[what]:.{digits if line[what] < 1 else 2}f}" for line in (one, two))
        cells += [*times, f"{one[what] / two[what]:.2f}"]
    assert f"| {edge}³ | {' | '.join(cells)} |" in text
    times = [line["correction_ms"] for line in (whole, halves)]
    gain = times[0] / times[1] / 2
    assert re.search(rf"{times[0]:.2f} and {times[1]:.2f} ms for {edge}³[^(]* \((efficiency )?{gain:.2f}\)", text)


def rows_of(record, begin=""):
    """The cells of each line of the tables on the page of a record, from the text `begin` on."""
    page = (RESULTS / f"{record}.md").read_text()
    lines = page[page.index(begin) :].splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]


def test_the_iterations_of_parict_are_those_of_the_guide():
    text = " ".join(MEASURED.split())
    table = rows_of(figures.PAPER_TABLES, "## 2018, Table 2")
    place = next(k for k, cells in enumerate(table) if cells[0].startswith("ani5 "))
    sweeps, exact = table[place], table[place + 1]
    assert exact[0] == "by eliminations" and table[0][3:5] == ["IC(0)", "ICT"] and table[0][-1] == "5"
    assert f"factors with as many entries: {sweeps[3]} with IC(0), {sweeps[4]} with ICT" in text
    counts = f"`ICT` takes {sweeps[4]} iterations, `ParICT` {exact[-1]} after five steps, `IC0` {sweeps[3]}: [ani5]"
    assert counts in GUIDE
    assert f"five steps of ParICT it is {sweeps[-1]} by the sweeps of the paper, {exact[-1]} by eliminations" in text
    table = rows_of("parilut-quality-2-core-amd-epyc-2026-11-27")
    found = {cells[0]: cells for cells in table if cells[2:3] == ["cg"]}
    for name, wording in (
        ("ibmpg1_spd", "ibmpg1_spd takes {} iterations instead of {} with IC(0)"),
        ("of_pitzDaily_p", "of_pitzDaily_p takes {} instead of {}:"),
    ):
        default, ilu0 = found[name][3], found[name][8]
        assert wording.format(default, ilu0) in text


def iterations(run, matrix, method, variant):
    record = run.one(matrix=matrix, work=method, variant=variant)
    assert record.detail["status"] == "CONVERGED", (matrix, method, variant)
    return record.detail["iterations"]


def test_the_matrices_beside_the_papers_numbers_are_the_papers():
    run = figures.load(figures.PAPER_TABLES)
    entries = {"ani3": 4951, "ani5": 86227, "ani6": 349603, "ani7": 1407811, "cage10": 150645, "cage11": 559722,
               "cage12": 2032536, "cage13": 7479343}  # fmt: skip
    assert {name.partition(" ")[0]: facts["nnz"] for name, facts in run.matrices.items()} == entries
    for name in entries:
        for order in ("as stored", "RCM here"):
            for method in ("cg", "gmres") if name in ("ani5", "ani6", "ani7") else ("gmres",) if "cage" in name else ():
                for variant in parilut_tables.columns(method)[0]:
                    if variant != "ICT":  # which has no factors of some
                        assert iterations(run, f"{name} {order}", method, variant)


def test_the_iterations_compared_with_the_paper_are_those_of_the_page():
    run, text = figures.load(figures.PAPER_TABLES), " ".join((DOCS / "parilut.md").read_text().split())
    stored, rcm = "ani7 as stored", "ani7 RCM here"
    shown = [[iterations(run, name, "cg", f"exact {k}") for k in (2, 3, 5)] for name in (stored, rcm)]
    assert "ParICT takes {}, {} and {} iterations after 2, 3 and 5 steps".format(*shown[0]) in text
    assert "in finelu's own order {}, {} and {} (".format(*shown[1]) in text
    tables = {"cg": parilut_tables.TABLE_2, "gmres": parilut_tables.TABLE_3}
    paper = {(name, method): found[name.upper()][-6:] for method, found in tables.items()
             for name in ("ani5", "ani6", "ani7", "cage10", "cage11") if name.upper() in found}  # fmt: skip
    more = [
        f"{100 * (iterations(run, stored, method, variant) / paper['ani7', method][5] - 1):.0f}%"
        for variant in ("5", "exact 5")
        for method in ("cg", "gmres")
    ]
    assert "{} more with `cg` and {} more with `gmres` by the paper's method, and {} and {} more".format(*more) in text
    above = {
        (f"{name} {order}", method, k)
        for (name, method), counts in paper.items()
        for order in ("as stored", "RCM here")
        for k in range(6)
        if iterations(run, f"{name} {order}", method, f"exact {k}") > counts[k]
    }
    assert above == {*((stored, "cg", k) for k in range(6)), (stored, "gmres", 4), (stored, "gmres", 5), (rcm, "cg", 0)}
    first = iterations(run, rcm, "cg", "exact 0")
    assert f"IC(0) takes {first} iterations, and the paper's initial values {paper['ani7', 'cg'][0]}" in text
    cages = {
        iterations(run, f"{name} {order}", "gmres", f"{kind}{k}")
        for name in ("cage12", "cage13")
        for order in ("as stored", "RCM here")
        for kind in ("", "exact ")
        for k in range(6)
    }
    assert cages == {7, 8} and "Both take 7 or 8 iterations" in text


def test_the_times_of_the_papers_table_4_are_those_of_the_page():
    run = figures.load("parilut-papers-nvidia-h200-times-2026-11-27")
    text = " ".join((DOCS / "parilut.md").read_text().split())
    ms = {(r.matrix, r.variant): r.numeric_ms for r in run.find(work="factor")}
    anis, cages = ("ani5", "ani6", "ani7"), ("cage10", "cage11")
    assert "ParICT takes {:.1f}, {:.1f} and {:.1f} ms on ani5".format(*(ms[name, "ParICT"] for name in anis)) in text
    swept = [ms[name, "ParILUT"] for name in (*anis, *cages)]
    assert "ParILUT {:.1f}, {:.1f} and {:.1f} ms, and {:.1f} and {:.1f} ms on cage10".format(*swept) in text
    gains = [ms[name, "spilu"] / ms[name, "ParILUT"] for name in (*anis, *cages)]
    theirs = [parilut_tables.TABLE_4[name.upper()] for name in (*anis, *cages)]
    theirs = [superlu / parilut for _, parilut, superlu in theirs]
    assert f"takes {min(gains):.1f} to {max(gains):.0f} times as long as ParILUT on a core of its host" in text
    assert f"threads of a Xeon Phi, {min(theirs):.1f} to {max(theirs):.0f} times" in text
    steps = {r.matrix: r.numeric_ms for r in run.find(work="step 3")}
    assert f"{steps['ani3']:.2f} ms with 741 rows, {steps['ani7']:.2f} ms with 203,841" in text


def test_the_building_blocks_of_parilut_are_those_of_their_records():
    text = " ".join((DOCS / "parilut.md").read_text().split())
    runs = [figures.load(f"parilut-papers-nvidia-{gpu}-2026-11-27") for gpu in ("h100", "h200")]
    shares = {label: [] for label in ("candidates", "sweep after add", "select")}
    gains = []
    for run in runs:
        found = {r.matrix: r for r in run.find(work="factor", device="gpu", variant="ParILUT")}
        for record in found.values():
            for label, percent in shares.items():
                percent.append(100 * record.detail["blocks"][label] / sum(record.detail["blocks"].values()))
        peers = {r.matrix: r.numeric_ms for r in run.find(who="superlu")}
        gains.append([peers[name] / r.numeric_ms for name, r in found.items() if peers[name]])
    said = [f"{min(percent):.0f} to {max(percent):.0f}%" for percent in shares.values()]
    assert "The search for candidates takes {} of the time, the sweep after it {}, most where".format(*said) in text
    assert f"approximate selection {said[2]}" in text
    for found, host in zip(gains, ("times as long on a core of the H100's host (", "times on one of the H200's (")):
        assert f"{min(found):.2f} to {max(found):.0f} {host}{len(found)} matrices)" in text


def test_the_times_of_parict_on_a_gpu_are_those_of_the_page():
    run = figures.load("parilut-gpu-nvidia-h200-large-2026-11-27")
    text = " ".join((DOCS / "parilut.md").read_text().split())
    assert len(run.matrices) == 8 and min(facts["n"] for facts in run.matrices.values()) > 200_000

    def mean(values):
        return math.exp(sum(map(math.log, values)) / len(values))

    for by, wording in (
        ("", "it takes {:.2f} of the time of ParILUT (geometric mean; {:.2f} to {:.2f})"),
        (" by sweeps", "by sweeps {:.2f} ({:.2f} to {:.2f};"),
    ):
        pairs = [[run.one(matrix=name, work=kind + by) for kind in ("ParICT", "ParILUT")] for name in run.matrices]
        found = [half.numeric_ms / whole.numeric_ms for half, whole in pairs]
        assert wording.format(mean(found), min(found), max(found)) in text
    blocks = [[run.one(matrix=name, work=kind).detail["blocks"] for kind in ("ParICT", "ParILUT")]
              for name in run.matrices]  # fmt: skip
    ratio = {what: mean([half[what] / whole[what] for half, whole in blocks]) for what in ("candidates", "elimination")}
    assert f"takes {ratio['elimination']:.2f} times as long" in text and "two thirds of the time" in text
    assert round(3 * ratio["candidates"]) == 2
    share = [100 * (whole["elimination"] + whole["analysis"]) / sum(whole.values()) for _, whole in blocks]
    assert f"are {min(share):.0f} to {max(share):.0f}% of ParILUT" in text


def test_the_claims_of_the_paper_on_gmres_are_those_of_their_record():
    run, text = figures.load(figures.ILUPACK), " ".join((DOCS / "multilevel.md").read_text().split())
    stages = {name: {m: g for m in run.matrices if (g := ilupack_tables.gain(run, m, name))}
              for name in (ilupack_tables.MGSO, ilupack_tables.PREC, "total")}  # fmt: skip
    means = {name: math.exp(sum(map(math.log, found.values())) / len(found)) for name, found in stages.items()}
    gram = stages[ilupack_tables.MGSO]
    large = [gain for name, gain in gram.items() if run.matrices[name]["n"] > 400_000]
    small = [gram[name] for name in ("cage10", "cage11", "topopt3d_060")]
    assert f"Here it is {means[ilupack_tables.MGSO]:.0f} times as fast, copies" in text and len(gram) == len(
        large + small
    )
    assert f"{min(large):.0f} to {max(large):.0f} times above 400,000 rows" in text
    assert f"{min(small):.1f} to {max(small):.1f} times on cage10, cage11 and topopt3d_060" in text
    least = {name: math.floor(10 * min(found.values())) / 10 for name, found in stages.items()}
    assert f"M is {means[ilupack_tables.PREC]:.1f} times as fast (at least {least[ilupack_tables.PREC]} times)" in text
    assert f"all of GMRES {means['total']:.1f} times (at least {least['total']:.1f} times)" in text


def test_the_counts_of_solve_on_a_gpu_are_those_of_its_page():
    text = " ".join(GPU.split())
    header, *table = rows_of("solve-gpu-nvidia-h100-cudss-2026-11-25", "## Times, ms")
    place = {name: header.index(name) for name in ("matrix", "solve, GPU", "cuDSS", "splu", "on the GPU", "on the CPU")}
    counts = Counter()
    for cells in table[1:]:
        ours, *peers = (cells[place[name]] for name in ("solve, GPU", "cuDSS", "splu"))
        times = [float(ms) for ms in peers if ms != "-"]
        if ours == "-" or not times:
            continue
        counts["compared"] += 1
        if min(times) < 0.8 * float(ours):
            recipes = cells[place["on the GPU"]].partition(":")[0].split(" > ")
            counts["slower"] += 1
            counts["in vain" if len(recipes) > 1 else recipes[0]] += 1
    assert counts == {"compared": 44, "slower": 8, "in vain": 6, "MILU0": 1, "SparseLU": 1}
    assert "Of the 44 systems 8 have a ratio below 0.8 to cuDSS or `splu`: on six `solve` first tried" in text


def test_the_evidence_of_ic0_jacobi_and_schwarz_with_convection_is_that_of_the_records():
    run, found = front.load(front.REGRET), {}
    for variant in ("IC0() cg", "Jacobi() cg"):
        found[variant] = {r.matrix: r for r in run.records if r.variant == variant}
    ic0, jacobi = found.values()
    solved = [{m for m, r in of.items() if not r.detail["status"]} for of in (ic0, jacobi)]
    both = sorted(solved[0] & solved[1])
    iterations = [ic0[m].detail["iterations"] / jacobi[m].detail["iterations"] for m in both]
    times = [ic0[m].numeric_ms / jacobi[m].numeric_ms for m in both]
    mean = front.mean
    text = f"{mean(iterations):.2f} of the iterations of `Jacobi`, {mean(times):.2f} of its time: [{len(both)} systems]"
    assert text in GUIDE
    page = " ".join(MEASURED.split())
    assert f"on {len(both)} positive definite systems that both solve, IC0 takes {mean(iterations):.2f} of" in page
    assert (
        f"and {mean(times):.2f} of its time, set-up included (geometric means; {max(times):.2f} on the worst)" in page
    )
    without = [m for m in jacobi if m not in solved[0]]
    assert {ic0[m].detail["tried"][0]["outcome"].partition(":")[0] for m in without} == {"no factors"}
    assert all(run.matrices[m]["definite"] for m in jacobi)
    assert len(solved[1]) == len(jacobi) and f"converged on all {len(jacobi)} systems tried ([positive" in GUIDE
    assert f"`IC0` broke down on {len(without)} of these" in GUIDE
    rows = {cells[3]: cells for cells in rows_of("schwarz-gpu-nvidia-h200-2026-11-23") if cells[0] == "atmosmodd_like"}
    _, _, _, _, _, _, iterations, *_, ratio = rows["Schwarz"]
    assert f"| {ratio} times as fast as the best other recipe, on [one system]" in GUIDE
    assert f"it took {iterations} iterations of `bicgstab`, and was {ratio} times as fast" in page


def test_how_often_others_are_sooner_in_the_guide_of_solve_is_that_of_the_record():
    pairs = dict(losses.sources())[front.REGRET]
    ratios = [theirs / ours for ours, theirs, _ in pairs.values()]
    rows = [front.load(front.REGRET).matrices[name]["n"] for name in pairs]
    page = " ".join((DOCS / "solve.md").read_text().split())
    less = sum(ratio < 1 for ratio in ratios)
    assert f"On {less} of {len(ratios)} systems of {min(rows):,} to {max(rows):,} rows the fastest of" in page
    assert f"| any kind, {min(rows):,} to {max(rows):,} unknowns " in README
    assert f"{front.mean(ratios):.2f} of the time of `solve` in the geometric mean of all {len(ratios)}, and" in page
    assert f"{min(ratios):.2f} on the worst" in page
    others = [pair for name, found in losses.sources() if name != front.REGRET for pair in found.values()]
    assert f"less time on {sum(theirs < ours for ours, theirs, _ in others)} of {len(others)} systems" in page


def test_the_systems_of_schwarz_are_those_of_its_page():
    page = (DOCS / "schwarz.md").read_text()
    found = {cells[0]: cells for cells in rows_of("schwarz-gpu-nvidia-h200-2026-11-23")}
    _, cases, alone, mean, worst = found["all others"]
    assert (cases, alone, worst) == ("16", "0", "0.00 opm_egg_3ph")
    run = figures.load("schwarz-gpu-nvidia-h200-2026-11-23")
    others = [n for n in run.matrices if n not in (*schwarz.SCALAR, *schwarz.ELASTIC, *schwarz.BLOCKS)]
    both = [ratio for ratio, _ in schwarz.ratios(run, schwarz.SCHWARZ, others) if 0 < ratio < math.inf]
    assert f"| {cases}, of which `Schwarz` did not solve one | {mean}, of the other {len(both)} |" in page


def test_the_iterations_of_cupy_are_those_of_the_page():
    run, text = figures.load(figures.SPINE_GMRES), " ".join(MEASURED.split())
    found = []
    for name, ratio in figures.bar(figures.SPINE_GMRES, "GMRES(30)+ILU0 to 1e-8, GPU").items():
        ours, theirs = (run.one(matrix=name, work="gmres", who=who).detail for who in ("finelu", "cupy"))
        if not theirs.get("stopped"):
            found.append((ours["iterations"], theirs["iterations"], ratio))
    few = [ours for ours, theirs, _ in found if theirs == 30]
    many = [(theirs / ours, ratio) for ours, theirs, ratio in found if ours >= 150]
    assert f"it takes 30 iterations on {len(few)} matrices on which finelu takes {min(few)} to {max(few)}." in text
    assert f"On the {len(many)} matrices on which finelu takes 150 or more" in text
    mean = math.exp(sum(math.log(ratio) for _, ratio in many) / len(many))
    assert f"at most {max(more for more, _ in many):.2f} times as many, and the mean ratio is {mean:.1f}." in text
