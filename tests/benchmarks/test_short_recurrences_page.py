"""The table of docs/krylov.md has the figures of its record."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "krylov.md"
if not PAGE.exists():
    pytest.skip("docs/ is not here", allow_module_level=True)
NAMES = {"gmres(restart=50)": "gmres(50)"}


def rows(table: str, head: str) -> list[list[str]]:
    (block,) = re.findall(rf"^\| {re.escape(head)}[^\n]*\n\|[-|]+\n((?:\|[^\n]*\n)+)", re.sub(" +", " ", table), re.M)
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in block.strip().split("\n")]


def test_the_products_of_the_page_are_those_of_its_record():
    page = PAGE.read_text()
    (name,) = set(re.findall(r"short-recurrences-[\w-]*\d", page))
    record = (ROOT / "benchmarks" / "results" / f"{name}.md").read_text()
    claims = {row[0]: row for row in rows(record, "method | solved")}
    counts = rows(record, "matrix | rows | entries | M | bicgstab")
    methods = list(claims)
    shown = rows(page, "method | solves, of 29")
    assert len(counts) == 29 and len(shown) == 6
    for method, solved, mean, largest, *skew in shown:
        key = NAMES.get(name_of := method.strip("`"), re.sub(r"\w=", "", name_of))
        claim = claims[key]
        assert claim[1] == f"{solved} of 29"
        assert float(mean) == pytest.approx(float(claim[3]), abs=0.006)
        assert largest in ("", claim[4].split()[0])
        column = 4 + methods.index(key)
        assert skew == [row[column] if row[column].isdigit() else "-" for row in counts[:3]]
