"""For the pages: docs/notebooks/*.py are executed when the pages are made, and shown with what they printed and drew.

A file is a notebook in the percent format, which Jupyter (by Jupytext), VS Code and Spyder open: `# %% [markdown]`
begins a cell of text, `# %%` one of code. Each becomes a page, and a notebook to download.

The pages are made on a machine without a GPU and without PETSc. Notebooks that need one of them keep their outputs:
where it is installed, `python docs/executed.py docs/notebooks/petsc.py` writes docs/notebooks/petsc.ipynb, and the page
shows what that file has. If the cells of the two files differ, the pages are not made.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "notebooks"
BEGIN = re.compile(r"^# %%(.*)\n", re.MULTILINE)
CODE = "code"


@dataclass
class Cell:
    """A cell: its kind, "code" or "markdown", its text, and the first line of the text in the file.

    printed : what it wrote to stdout.  figures : (SVG, title) of each figure that it drew.
    """

    kind: str
    text: str
    line: int
    printed: str = ""
    figures: list[tuple[str, str]] = field(default_factory=list)


def cells(text: str) -> list[Cell]:
    """The cells of a file in the percent format; ValueError if it does not begin with one."""
    if not text.startswith("# %%"):
        raise ValueError("it does not begin with # %%")
    parts, found, line = BEGIN.split(text)[1:], [], 2
    for head, body in zip(parts[::2], parts[1::2], strict=True):
        kind = "markdown" if head.strip() == "[markdown]" else CODE
        shown = re.sub(r"^# ?", "", body, flags=re.MULTILINE) if kind != CODE else body
        found.append(Cell(kind, shown.strip("\n"), line))
        line += body.count("\n") + 1
    return found


def execute(path: Path) -> list[Cell]:
    """The cells of a notebook after they ran, one after the other. RuntimeError names the line that failed."""
    os.environ.setdefault("FINELU_BACKGROUND", "0")  # kernels are there before the first answer, as in later calls
    os.environ.setdefault("FINELU_SILENT", "1")
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    plt.close("all")  # figures of others
    found, space = cells(path.read_text()), {"__name__": "__main__"}
    style = {
        "figure.figsize": (6.4, 3.2),
        "figure.constrained_layout.use": True,
        "font.size": 9,
        "svg.hashsalt": "finelu",
    }
    for cell in found:
        if cell.kind != CODE:
            continue
        out = io.StringIO()
        try:
            with redirect_stdout(out), plt.rc_context(style):
                exec(compile("\n" * (cell.line - 1) + cell.text, path, "exec"), space)
        except Exception as error:
            raise RuntimeError(f"{path}, the cell at line {cell.line}: {type(error).__name__}: {error}") from error
        cell.printed = out.getvalue()
        for number in plt.get_fignums():
            figure, drawn = plt.figure(number), io.StringIO()
            figure.savefig(drawn, format="svg", metadata={"Date": None})
            titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
            cell.figures.append((drawn.getvalue(), ", ".join(titles)))
        plt.close("all")
    return found


def kept(path: Path) -> list[Cell]:
    """The cells with the outputs that NAME.ipynb next to the file has; RuntimeError if it was made from other cells."""
    found, known = cells(path.read_text()), json.loads(path.with_suffix(".ipynb").read_text())["cells"]
    if [(cell.kind, cell.text) for cell in found] != [(entry["cell_type"], entry["source"]) for entry in known]:
        raise RuntimeError(
            f"{path} has other cells than its .ipynb: write that again, by python docs/executed.py {path}"
            " where what the notebook needs is installed"
        )
    for cell, entry in zip(found, known, strict=True):
        for output in entry.get("outputs", []):
            if output["output_type"] == "stream":
                cell.printed += output["text"]
            else:
                cell.figures.append((output["data"]["image/svg+xml"], output["metadata"]["title"]))
    return found


def page(found: list[Cell], name: str, when: str = "Executed when these pages were made") -> str:
    """The Markdown of the cells with their outputs; figures are the files NAME-1.svg, NAME-2.svg, ..."""
    parts, number = [], 0
    for cell in found:
        if cell.kind != CODE:
            parts.append(cell.text)
            continue
        parts.append(f"```python\n{cell.text}\n```")
        if cell.printed:
            parts.append(f"```text\n{cell.printed.rstrip()}\n```")
        for _, title in cell.figures:
            number += 1
            parts.append(f"![{title}]({name}-{number}.svg)")
    parts.append(f"{when}. [Download it as a notebook]({name}.ipynb).")
    return "\n\n".join(parts) + "\n"


def notebook(found: list[Cell]) -> str:
    """The cells with their outputs as a Jupyter notebook, format 4.5."""
    made = []
    for k, cell in enumerate(found):
        entry = {"cell_type": cell.kind, "id": f"cell-{k}", "metadata": {}, "source": cell.text}
        if cell.kind == CODE:
            drawn = [
                {"output_type": "display_data", "metadata": {"title": title}, "data": {"image/svg+xml": svg}}
                for svg, title in cell.figures
            ]
            printed = [{"output_type": "stream", "name": "stdout", "text": cell.printed}] if cell.printed else []
            entry |= {"execution_count": None, "outputs": printed + drawn}
        made.append(entry)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": made}, indent=1)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs for each page: links to the files, which work in a checkout, become links to the pages."""
    return re.sub(r"\(notebooks/([\w-]+)\.py\)", r"(notebooks/\1.md)", markdown)


def on_files(files: Any, config: Any) -> Any:
    """Called by MkDocs before pages are made."""
    from mkdocs.structure.files import File

    for path in sorted(FOLDER.glob("*.py")):
        if path.with_suffix(".ipynb").exists():  # MkDocs takes that file itself
            found = kept(path)
            made = {f"{path.stem}.md": page(found, path.stem, "Executed on the machine that the first output names")}
        else:
            found = execute(path)
            made = {f"{path.stem}.md": page(found, path.stem), f"{path.stem}.ipynb": notebook(found)}
        drawn = [svg for cell in found for svg, _ in cell.figures]
        made |= {f"{path.stem}-{k}.svg": svg for k, svg in enumerate(drawn, 1)}
        for name, content in made.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).with_suffix(".ipynb").write_text(notebook(execute(Path(name))))
