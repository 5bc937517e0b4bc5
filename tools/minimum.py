"""The oldest versions that pyproject.toml allows, as constraints for pip.

Usage: python tools/minimum.py [EXTRA ...]
Prints a line such as numpy==1.26.4 for each dependency of finelu, of its build and of the extras named. Ends with an
error where one has no lower bound: then no test can tell which versions serve.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
BOUNDED = re.compile(r"([\w.-]+)(?:\[[\w,-]+\])?>=([\w.]+)")  # a name, perhaps with extras, and its lower bound


def oldest(extras: Sequence[str]) -> list[str]:
    """`name==version` for each dependency of finelu, of its build and of `extras`, without those named twice."""
    table = tomllib.loads(PYPROJECT.read_text())
    project = table["project"]
    names = [*table["build-system"]["requires"], *project["dependencies"]]
    names += [name for extra in extras for name in project["optional-dependencies"][extra]]
    found = {}
    for name in names:
        bounded = BOUNDED.match(name)
        if bounded is None:
            sys.exit(f"minimum.py: {name!r} in {PYPROJECT.name} has no lower bound")
        found[bounded[1]] = f"{bounded[1]}=={bounded[2]}"
    return list(found.values())


if __name__ == "__main__":
    print("\n".join(oldest(sys.argv[1:])))
