"""The documentation: pages are reached, pictures are small and shown, figures are those of the records."""

import json
import math
import re
import runpy
import sys
from importlib import import_module
from pathlib import Path

import pytest
from checks import documented

import finelu

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SOURCE = Path(finelu.__file__).resolve().parents[1]
PICTURES = DOCS / "pictures"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
GUIDE = (DOCS / "choose.md").read_text()
GPU = (DOCS / "gpu.md").read_text()


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
    listed = set(re.findall(r"(\w+\.md)", (ROOT / "mkdocs.yml").read_text()))
    assert listed == {page.name for page in DOCS.glob("*.md")}
    linked = set(re.findall(r"\((\w+\.md)\)", (DOCS / "index.md").read_text()))
    assert linked | {"index.md"} == listed


def described():
    """The names after ::: on all pages, which the documentation of the API is made from."""
    return [name for page in PAGES for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)]


def test_the_public_names_are_all_in_the_api():
    last = {name.rpartition(".")[2] for name in described()}
    elsewhere = {"__version__", "gallery", *vars(finelu.errors)}
    assert set(finelu.__all__) - last <= elsewhere


@pytest.mark.parametrize("name", described())
def test_what_the_api_names_can_be_imported(name):
    module, found = name, None
    while not any((SOURCE / path).exists() for path in (f"{slashed(module)}.py", f"{slashed(module)}/__init__.py")):
        module, _, found = module.rpartition(".")
    if module.startswith("finelu.interop."):
        package = module.rpartition(".")[2]
        if package in ("torch", "jax", "pyamg"):
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
    from finelu.preconditioners import RECIPES

    heads = "\n".join("\n".join(page.read_text().split("\n")[:8]) for page in PAGES[1:])
    for recipe in RECIPES.values():
        assert re.search(rf"`{recipe.__name__}[(`]", heads), f"no page begins with {recipe.__name__}"
        assert f"{recipe.__name__}(" in GUIDE


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
    made = {*runpy.run_path(str(PICTURES / "methods.py"))["PICTURES"], *measured["PICTURES"]}
    assert {path.stem for path in PICTURES.iterdir() if path.suffix in (".svg", ".png")} == made


@pytest.mark.gpu
def test_the_example_on_the_gpu_runs():
    from finelu.kernels import require_gpu

    try:
        require_gpu()
    except finelu.DeviceError as error:
        pytest.skip(str(error))
    for code in documented("gpu", "gpu"):
        exec(code, {})


def test_only_code_that_needs_a_package_or_a_gpu_is_set_apart():
    for page in PAGES:
        for words in re.findall(r"^```python *(.+)$", page.read_text(), re.MULTILINE):
            assert words in ("{.torch}", "{.jax}", "{.pyamg}", "{.petsc}", "{.gpu}"), (
                f"{page.name}: {words} is run by no test"
            )


def test_the_means_of_the_picture_of_speed_are_those_of_the_readme(measured):
    table = re.findall(r"^\|.*\| ([\d.]+) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    means = [measured["mean"](x) for _, x in measured["speed_rows"]()]
    assert [f"{m:#.2g}".rstrip(".") for m in means] == [table[k] for k in (0, 2, 4, 6, 7, 8)]


def test_the_figures_of_solve_are_those_of_its_record(measured):
    run, found = measured["records"]("solve-2-core-intel-xeon-2026-11-22", work="solve")
    size = {name: facts["n"] for name, facts in run["matrices"].items()}
    times: dict[str, dict[str, float]] = {}
    for r in found:
        times.setdefault(r["variant"], {})
        if not r["detail"]["status"]:
            times[r["variant"]][r["matrix"]] = r["numeric_ms"]
    ours, peers = times.pop("finelu.solve"), times
    anybody = set().union(*peers.values())
    assert len(ours) == 68 and anybody == set(ours) and len(size) == 77
    large = [m for m in ours if size[m] >= 10_000]
    beside = []
    for names in (("splu", "spilu"), tuple(peers)):
        beside.append([min(peers[name][m] for name in names if m in peers[name]) / ours[m] for m in large])
    scipy, best = (measured["mean"](x) for x in beside)
    readme, guide = (ROOT / "README.md").read_text(), " ".join(GUIDE.split())
    assert f"`gmres` ({len(large)} matrices) | {scipy:.3g} |" in readme
    assert f"matrix by matrix ({len(large)}) | {best:.3g} |" in readme
    assert f"{scipy:.3g} times as fast as the better of SciPy's two and {best:.3g} times as fast as the best" in guide
    assert f"least {min(beside[0]):.2g} and most {max(beside[0]):.0f}, and least {min(beside[1]):.2g}" in guide


def test_the_counts_of_robustness_are_those_of_the_guide_and_the_readme(measured):
    count, times = measured["solved"]()
    n = {name: len(found) for name, found in times.items()}
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"Of {count} real systems `MultilevelILU` with GMRES(50) solves {n['MultilevelILU']}" in readme
    ours = ("ILU0", "ILUT", "ParILUT", "MultilevelILU")
    solved = set().union(*(times[name] for name in ours))
    first = [min((times[name][m], name) for name in ours if m in times[name])[1] for m in solved]
    text = " ".join(GUIDE.split())
    assert f"ILU0 alone solves {n['ILU0']} of the {count}. Of the {len(solved)} that any" in text
    assert (
        f"ILU0 is the fastest {first.count('ILU0')} times, ILUT {first.count('ILUT')} times, MultilevelILU "
        f"{first.count('MultilevelILU')} times" in text
    )
    more = len(set(times["ILUT"]) - set(times["ILU0"]))
    assert f"ILUT solves {n['ILUT']}, and {more} that ILU0 does not; the two together {n['ILU0'] + more}" in text
    both = [m for m in times["ILUT"] if m in times["ILU0"]]
    share = measured["mean"]([times["ILUT"][m] / times["ILU0"][m] for m in both])
    assert f"Where both do ({len(both)})" in text and f"it takes {share:.2g} of ILU0's" in text
    both = [m for m in times["ILUT"] if m in times["MultilevelILU"]]
    cost = measured["mean"]([times["MultilevelILU"][m] / times["ILUT"][m] for m in both])
    assert f"costs {cost:.1f} times what ILUT does where both work ({len(both)} systems)" in text
    fastest = [
        min((found[m], name) for name, found in times.items() if m in found)[1] for m in set().union(*times.values())
    ]
    assert (
        f"`splu` solves {n['splu']} of the {count} and is the fastest of all solvers there on {fastest.count('splu')},"
        in text
    )


def test_the_crossover_is_that_of_the_gpu_page(measured):
    points = measured["crossover_points"]()
    rows = {m: (size, cpu, gpu) for size, cpu, gpu, m in points}
    found = re.findall(r"^\| (\w[\w:]*) \| [\d,]+ \| ([\d.,]+) \| ([\d.]+) \| ([\d.]+) \|", GPU, re.MULTILINE)
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
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())["records"]


def test_the_whole_solves_are_those_of_the_gpu_page():
    times = {(r["matrix"], r["variant"]): r["numeric_ms"] for r in records("ilupack-nvidia-h200-2026-11-21")}
    found = re.findall(r"^\| (\w+) \| [\d,]+ \| ([\d.]+) \| ([\d.]+) \| [CG]PU", GPU, re.MULTILINE)
    assert len(found) == 7
    for name, cpu, gpu in found:
        assert float(cpu) == pytest.approx(times[name, "a"], rel=0.005)
        assert float(gpu) == pytest.approx(times[name, "c"], rel=0.005)


def test_the_times_of_parilut_are_those_of_the_pages():
    found = [r for r in records("parilut-gpu-nvidia-h200-2026-11-21") if r["work"] == "ParILUT"]
    gpu, cpu = ({r["matrix"]: r["numeric_ms"] for r in found if r["device"] == where} for where in ("gpu", "cpu"))
    ratios = [cpu[name] / gpu[name] for name in gpu]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    assert (
        f"ParILUT {mean:.0f} times as fast as 16 cores beside it do (geometric mean of {len(ratios)} matrices"
        in " ".join(GUIDE.split())
    )
    assert f"at least {min(ratios):.1f}" in " ".join(GUIDE.split())
    assert f"{min(ratios):.1f} to {max(ratios):.0f} times as fast as on 16 cores" in " ".join(GPU.split())


def test_the_times_of_block_ilu_are_those_of_the_guide():
    table = (ROOT / "benchmarks" / "results" / "fgbilu-nvidia-h200-2026-11-22.md").read_text()
    ours = {}
    for work in ("factorization", "triangular solve"):
        row = re.search(rf"\| {work}, GPU +\| 65x65x65 +\| sequential.*\| >= \d+x +\| (\S+) +\| (\S+)", table)
        ours[work] = tuple(map(float, row.groups()))
    (slow, fast), (slow_solve, fast_solve) = ours.values()
    text = " ".join(GUIDE.split())
    assert f"{fast:.2f} ms a factorization, {fast_solve:.2f} ms a solve; {slow:.0f} ms and {slow_solve:.0f} ms" in text
    readme = (ROOT / "README.md").read_text()
    for work, peer in (("factorization", "bsrilu02"), ("triangular solve", "bsrsv2, L and U")):
        row = re.search(rf"\| {work}, GPU +\| 65x65x65 +\| cuSPARSE {peer} +\| >= \d+x +\| (\S+) +\| (\S+)", table)
        theirs, own = map(float, row.groups())
        assert f"the better policy of {peer} | {theirs / own:.2g} |" in readme


def test_the_iterations_of_parict_are_those_of_the_guide():
    table = (ROOT / "benchmarks" / "results" / "parilut-papers-2-core-intel-xeon-2026-11-21.md").read_text()
    table = table[table.index("## 2018, Table 2") : table.index("## 2018, Table 3")]
    text = " ".join(GUIDE.split())
    for name, wording in (
        ("ani5 = ANI5", "{} iterations with IC(0), {} with ParICT"),
        ("ibmpg1_spd", "on ibmpg1_spd {}, and {}"),
        ("of_pitzDaily_p", "on of_pitzDaily_p {}, and {}"),
    ):
        cells = [c.strip() for c in re.search(rf"^\| {name} .*$", table, re.MULTILINE).group().split("|")]
        assert wording.format(cells[4], cells[11]) in text
