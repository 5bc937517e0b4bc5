"""The table of docs/columns.md about block GMRES has the figures of its record."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "columns.md"
if not PAGE.exists():
    pytest.skip("docs/ is not here", allow_module_level=True)


def rows(text: str, first: str) -> list[list[str]]:
    lines = [line for line in text.split("\n") if re.match(rf"\| {first}", line)]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_the_figures_of_the_page_are_those_of_its_record():
    page = PAGE.read_text()
    (name,) = set(re.findall(r"block-gmres-[\w-]*\d", page))
    record = (ROOT / "benchmarks" / "results" / f"{name}.md").read_text()
    for first in ("more than 50", "at most 50"):
        assert rows(page, first) == rows(record, first) != []
    pairs = rows(record, r"[\w:,=]+ +\| \d+ +\|")
    assert len(pairs) == 24 and len({row[0] for row in pairs}) == 12
    (sherman3,) = [row for row in pairs if row[0] == "sherman3" and row[2] == "ILU0"]
    assert [round(float(sherman3[place])) for place in (3, 5)] == [397, 22] and sherman3[8] == "0.26"
    assert sum(row[4] == row[6] == "0" for row in pairs if float(row[3]) > 50) == 4
