"""The floors of finelu: compares the imports of its packages with the table of docs/architecture.md, and draws them.

Usage: python tools/floors.py [--write]   (prints the imports that the table does not allow, and whether
docs/pictures/floors.svg is up to date; --write: draws it)

A package, here, is a module or package that the table names; a file belongs to the longest name that fits it. A package
imports only from floors below its own, except for the lines "- `a` imports `b`: why" of the page. In a package of
kernels, where a file is a family, a family imports another only if kernels/catalogue.py names it. No modules import
each other in a circle.
"""

from __future__ import annotations

import ast
import re
import runpy
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "finelu"
PAGE = ROOT / "docs" / "architecture.md"
PICTURE = ROOT / "docs" / "pictures" / "floors.svg"
FAMILIES = ("kernels.reference", "kernels.cpu", "kernels.cuda")  # packages in which each file stands alone
TOP = "__init__"  # finelu itself


def module_of(path: Path) -> str:
    """The dotted name of a file inside finelu: "krylov.cg", "kernels" for its __init__, "__init__" for finelu's."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


@cache
def modules() -> dict[str, Path]:
    return {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def floors() -> dict[str, int]:
    """package -> floor, from the table of the page."""
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", PAGE.read_text(), re.MULTILINE)
    return {name: int(floor) for floor, names in rows for name in re.findall(r"`([\w.]+)`", names)}


@cache
def allowed() -> frozenset[tuple[str, str]]:
    """The pairs of modules of which the page, or the catalogue of kernels, says that the first imports the second."""
    pairs = set(re.findall(r"^- `([\w.]+)` imports `([\w.]+)`: ", PAGE.read_text(), re.MULTILINE))
    for form, families in runpy.run_path(str(PACKAGE / "kernels" / "catalogue.py"))["USES"].items():
        for name, others in families.items():
            pairs |= {(f"kernels.{form}.{name}", f"kernels.{form}.{other}") for other in others.split()}
    return frozenset(pairs)


def package_of(module: str) -> str:
    """The longest name of the table that a module is, or lies in."""
    parts = module.split(".")
    names = (".".join(parts[:k]) for k in range(len(parts), 0, -1))
    return next((name for name in names if name in floors()), "")


def _type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _nodes(node: ast.AST, *, deep: bool) -> Iterator[ast.AST]:
    """The nodes of a module, without those that only a type checker reads; those inside of functions only if `deep`."""
    for child in ast.iter_child_nodes(node):
        if _type_checking(child) or (not deep and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)):
            continue
        yield child
        yield from _nodes(child, deep=deep)


@cache
def imports(module: str, deep: bool = True) -> frozenset[str]:
    """The modules of finelu that one imports: anywhere, or, with deep=False, as it is imported itself."""
    names: set[str] = set()
    for node in _nodes(ast.parse(modules()[module].read_text()), deep=deep):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import; write it out"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names |= {text for text in re.findall(r"'([\w.]+)'", ast.unparse(node)) if text.startswith("finelu.")}
    found = set()
    for name in names:
        first, *parts = name.split(".")
        if first == "finelu":
            known = [".".join(parts[:k]) for k in range(len(parts), 0, -1)]
            found.add(next((name for name in known if name in modules()), TOP))
    return frozenset(found - {module})


def violations() -> list[str]:
    """The imports that the page does not allow, a line each."""
    lines = [f"{name} has no floor" for name in modules() if not package_of(name)]
    lines += [f"floor {floors()[package]}: there is no {package}" for package in floors() if package not in modules()]
    if lines:
        return lines
    for name in modules():
        package = package_of(name)
        for other in sorted(imports(name)):
            there = package_of(other)
            if (name, other) in allowed():
                continue
            if there != package and floors()[there] >= floors()[package]:
                lines.append(f"{name} (floor {floors()[package]}) imports {other} (floor {floors()[there]})")
            elif there == package and package in FAMILIES and package not in (name, other):
                lines.append(f"{name} imports {other}, which the catalogue does not name")
    return lines + [f"in a circle: {' -> '.join(circle)}" for circle in circles()]


def circles() -> list[list[str]]:
    """Modules that import each other as they are imported."""
    found, done = [], set()

    def visit(name: str, way: list[str]) -> None:
        if name in way:
            found.append([*way[way.index(name) :], name])
        elif name not in done:
            for other in sorted(imports(name, deep=False)):
                visit(other, [*way, name])
            done.add(name)

    for name in modules():
        visit(name, [])
    return found


def picture() -> str:
    """The packages on their floors, and a line from each to every package that it imports, as SVG."""
    by_floor: dict[int, list[str]] = {}
    for package, floor in floors().items():
        by_floor.setdefault(floor, []).append(package)
    height, width, top = 46, 980, max(by_floor)
    place = {}
    for floor, packages in by_floor.items():
        step = width / len(packages)
        for k, package in enumerate(packages):
            place[package] = step * (k + 0.5), (top - floor) * height + 22
    lines = sorted({(package_of(name), package_of(other)) for name in modules() for other in imports(name)})
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {(top + 1) * height}" font-family="sans-serif" '
        'font-size="12">',
        '<g stroke="#1f5fa8" stroke-opacity="0.16" fill="none">',
    ]
    for package, other in lines:
        if package != other:
            (x, y), (u, v) = place[package], place[other]
            parts.append(
                f'<path d="M{x:.0f} {y:.0f}C{x:.0f} {(y + v) / 2:.0f} {u:.0f} {(y + v) / 2:.0f} {u:.0f} {v:.0f}"/>'
            )
    parts.append("</g>")
    for package, (x, y) in place.items():
        box = 7.2 * len(package) + 12
        parts.append(
            f'<rect x="{x - box / 2:.0f}" y="{y - 11:.0f}" width="{box:.0f}" height="22" rx="4" '
            'fill="#fff" stroke="#555"/>'
        )
        parts.append(f'<text x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle">{package}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main(arguments: Sequence[str]) -> int:
    found = violations()
    if not found and "--write" in arguments:
        PICTURE.write_text(picture())
    if not found and PICTURE.read_text() != picture():
        found = [f"{PICTURE} is not the picture of these imports; python tools/floors.py --write draws it"]
    print("\n".join(found) if found else "floors: as the page has them")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
