"""The numbers at module level of finelu, a line each in docs/constants.md: what it is, its kind, and its record.

Usage: python tools/constants.py [--write]   (prints the numbers without a description, a kind or a line, and the lines
without a number; --write: draws the page anew, and keeps the kinds and records that it has)

The description is the comment on the line of a number, or above a group of them. Kind and record are written into the
page, whose head lists the kinds.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, PAGE = ROOT / "src" / "finelu", ROOT / "docs" / "constants.md"
KINDS = ("fixed", "rounding", "measured", "chosen")
HEAD = """# Constants

Every number at module level of the Python sources, with its kind:

| kind | where the value comes from |
|---|---|
| fixed | a file format, a library, the literature, the hardware, or a CUDA source with the same number |
| rounding | the arithmetic: a number of roundings, or an exponent |
| measured | a measurement: its record, or a page; "source": the comment has it; "none": no record was kept |
| chosen | a limit that was set: near values do as well |

`tools/constants.py` holds this page against the sources. The rates that `finelu calibrate` measures are in
`auto/rates.py`, with their records.
"""
ROW = re.compile(r"^\| `([\w, ]+)` \| .* \| (\S+) \| ([^|]*) \|$")


class Number(NamedTuple):
    file: str
    names: str
    value: str
    text: str


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and not isinstance(node.value, bool)
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    return isinstance(node, ast.Tuple | ast.List) and bool(node.elts) and all(map(_is_number, node.elts))


def numbers() -> Iterator[Number]:
    """All of them, file by file, but those with a small name, which are no constants."""
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text()
        lines, above, end = source.split("\n"), "", 0
        for node in ast.parse(source).body:
            before, end = end, node.end_lineno or 0
            comments = [line[2:] for line in lines[before : node.lineno - 1] if line.startswith("# ")]
            if comments or node.lineno != before + 1:  # another group
                above = " ".join(comments)
            if not (isinstance(node, ast.Assign) and _is_number(node.value)):
                continue
            target = node.targets[0]
            names = ", ".join(ast.unparse(one) for one in (target.elts if isinstance(target, ast.Tuple) else [target]))
            if names.lower() != names:
                comment = lines[end - 1].partition("  # ")[2]
                value = ast.unparse(node.value).removeprefix("(").removesuffix(")").replace(" ** ", "^")
                yield Number(str(path.relative_to(PACKAGE)), names, value, comment or above)


def page(kinds: dict[tuple[str, str], tuple[str, str]]) -> str:
    """The page; kinds : (file, names) -> kind and record."""
    lines, file = [HEAD], ""
    for n in numbers():
        if n.file != file:
            file = n.file
            lines += [f"\n## {file}\n", "| number | value | what it is | kind | record |", "|---|---|---|---|---|"]
        kind, record = kinds.get((n.file, n.names), ("?", ""))
        text = n.text.replace("|", "\\|").replace("<", "&lt;")
        lines.append(f"| `{n.names}` | {n.value} | {text} | {kind} | {record} |")
    return "\n".join(lines) + "\n"


def kinds_of(text: str) -> dict[tuple[str, str], tuple[str, str]]:
    found, file = {}, ""
    for line in text.split("\n"):
        if line.startswith("## "):
            file = line[3:]
        elif file and (row := ROW.match(line)):
            found[file, row[1]] = row[2], row[3].strip()
    return found


def faults(text: str) -> list[str]:
    """What the page, or a source, lacks, a line each."""
    kinds, known = kinds_of(text), list(numbers())
    lines = [f"{n.file}: {n.names} has no description" for n in known if not n.text]
    for n in known:
        kind, record = kinds.get((n.file, n.names), ("", ""))
        if kind not in KINDS or (kind == "measured" and not record):
            lines.append(f"{n.file}: {n.names} has no kind in docs/constants.md, or was measured without a record")
        elif record.startswith("benchmarks/") and not (ROOT / record).exists():
            lines.append(f"{n.file}: {n.names}: there is no {record}")
    return lines


def main() -> int:
    text = PAGE.read_text() if PAGE.exists() else ""
    if "--write" in sys.argv[1:]:
        text = page(kinds_of(text))
        PAGE.write_text(text)
    lines = faults(text)
    if text != page(kinds_of(text)):
        lines.append("docs/constants.md is not that of these sources; python tools/constants.py --write draws it")
    print("\n".join(lines) or f"constants: {len(list(numbers()))}, each with its line")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
