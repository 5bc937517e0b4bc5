"""The notebooks of the documentation: each runs, and its page and its download show what it printed and drew.

Those that need PETSc or a GPU run where it is, and keep the outputs that they had there.
"""

import json
import os
import re
import runpy
import sys
from pathlib import Path

import pytest
from launched import OPEN_MPI

DOCS = Path(__file__).resolve().parents[2] / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.py"))
KEPT = [path for path in NOTEBOOKS if path.with_suffix(".ipynb").exists()]
NEEDS = {"petsc": ("petsc4py", pytest.mark.petsc), "gpu": ("cupy", pytest.mark.gpu)}


@pytest.fixture(scope="module")
def executed():
    pytest.importorskip("matplotlib")
    return runpy.run_path(str(DOCS / "executed.py"))


def check(executed, cells, path):
    """What holds for the cells of each notebook that ran, and for its page."""
    assert cells[0].kind == "markdown" and cells[0].text.startswith("# ")
    page = executed["page"](cells, path.stem)
    figures = sum(len(cell.figures) for cell in cells)
    assert page.count("](") >= figures > 0 and f"![]({path.stem}" not in page
    assert all(cell.printed.strip() in page for cell in cells) and any(cell.printed for cell in cells)
    assert not re.search(r"\bnan\b|0x[0-9a-f]{6}|Traceback", page)
    for link in re.findall(r"\]\(\.\./([\w-]+\.md)", page):
        assert (DOCS / link).exists()
    lines = [line for cell in cells if cell.kind == "code" for line in cell.text.splitlines()]
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if path not in KEPT], ids=lambda path: path.stem)
def test_a_notebook_runs_and_its_page_shows_what_came(executed, path):
    check(executed, executed["execute"](path), path)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_the_page_of_a_notebook_that_ran_elsewhere_shows_what_came_there(executed, path):
    check(executed, executed["kept"](path), path)
    first = next(cell for cell in executed["kept"](path) if cell.kind == "code")
    assert "cores of the CPU" in first.printed  # the machine


@pytest.mark.parametrize("path", [pytest.param(path, marks=NEEDS[path.stem][1]) for path in KEPT], ids=lambda p: p.stem)
def test_a_notebook_that_ran_elsewhere_runs_where_its_packages_are(executed, path, monkeypatch):
    pytest.importorskip(NEEDS[path.stem][0])
    for name, value in OPEN_MPI.items():  # its processes may be those of root, and more than there are cores
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)  # whose mpiexec fits its PETSc
    check(executed, executed["execute"](path), path)


def test_outputs_of_other_cells_are_refused(executed, tmp_path):
    path = tmp_path / "n.py"
    text = "# %% [markdown]\n# # Title\n# %%\nimport matplotlib.pyplot as plt\nplt.title('a curve')\nprint(3)\n"
    path.write_text(text)
    cells = executed["execute"](path)
    path.with_suffix(".ipynb").write_text(executed["notebook"](cells))
    assert executed["kept"](path) == cells  # text, outputs, figures and their titles
    path.write_text(text.replace("print(3)", "print(4)"))
    with pytest.raises(RuntimeError, match=r"n\.py has other cells than its \.ipynb: write that again"):
        executed["kept"](path)


def test_cells_are_run_one_after_the_other_and_what_they_print_is_theirs(executed, tmp_path):
    path = tmp_path / "n.py"
    path.write_text("# %% [markdown]\n# # Title\n#\n# text\n\n# %%\nx = 1\nprint('one')\n\n# %%\nprint(x + 1)\n")
    title, one, two = executed["execute"](path)
    assert title.text == "# Title\n\ntext"
    assert (one.printed, two.printed) == ("one\n", "2\n")
    page = executed["page"]([title, one, two], "n")
    assert page.startswith("# Title\n\ntext\n\n```python\nx = 1\nprint('one')\n```\n\n```text\none\n```\n\n```python")
    assert "(n.ipynb)" in page


def test_a_figure_belongs_to_the_cell_that_drew_it_and_is_closed(executed, tmp_path):
    path = tmp_path / "n.py"
    text = "import matplotlib.pyplot as plt\nplt.figure(); plt.title('a curve')\n"
    path.write_text(f"# %%\n{text}# %%\nprint(len(plt.get_fignums()))\n")
    one, two = executed["execute"](path)
    ((drawn, title),) = one.figures
    assert "<svg" in drawn and title == "a curve"
    assert two.figures == [] and two.printed == "0\n"
    assert "![a curve](n-1.svg)" in executed["page"]([one, two], "n")


def test_the_download_is_a_notebook_with_its_outputs(executed, tmp_path):
    path = tmp_path / "n.py"
    path.write_text("# %% [markdown]\n# text\n# %%\nprint(3)\n")
    found = json.loads(executed["notebook"](executed["execute"](path)))
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    text, code = found["cells"]
    assert (text["cell_type"], text["source"]) == ("markdown", "text")
    assert code["source"] == "print(3)" and code["execution_count"] is None
    assert code["outputs"] == [{"output_type": "stream", "name": "stdout", "text": "3\n"}]
    assert len({cell["id"] for cell in found["cells"]}) == 2


@pytest.mark.parametrize("text", ["# %%\nx = 1\n# %%\n1 / 0\n", "# %%\nx = 1\n# %%\n\ndef (\n"])
def test_a_cell_that_fails_is_named(executed, tmp_path, text):
    path = tmp_path / "n.py"
    path.write_text(text)
    with pytest.raises(RuntimeError, match=r"n\.py, the cell at line 4: (ZeroDivisionError|SyntaxError)"):
        executed["execute"](path)


def test_a_file_without_cells_is_refused(executed):
    with pytest.raises(ValueError, match="does not begin with # %%"):
        executed["cells"]("x = 1\n")
