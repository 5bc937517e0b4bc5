"""Machine code of the kernels that a wheel carries: a zip an architecture, written by tools/build_kernels.py.

`binaries/sm_90.zip` has the code of each template instance of instances.py by itself, as NVRTC makes it at run time. A
member, such as `elimination/double,int`, is the codes of the instances of a `.cu` file with the same types, one behind
the other: they are much alike, so that together they take a third of the room. `index.json` has

    {stem: {"source": sha256 of sources.source(stem), "codes": {template id: [member, name in the code, first, bytes]}}}

Importable without CuPy.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
import zipfile
from functools import cache
from pathlib import Path

from finelu.errors import ParameterError
from finelu.kernels.cuda.runtime.sources import source

FOLDER = Path(__file__).parents[1] / "binaries"
INDEX = "index.json"
APART = (87, 101)  # Jetson and its like, which run no code of other GPUs, whatever its number


class Archive:
    """A zip of machine code. If it cannot be read, it holds nothing, and one warning names the file."""

    def __init__(self, path: Path):
        self.path, self.index, self.members = path, {}, {}
        try:
            self.zip = zipfile.ZipFile(path)
            self.index = {
                stem: (kernels["source"], dict(kernels["codes"]))
                for stem, kernels in json.loads(self.zip.read(INDEX)).items()
            }
        except Exception as error:  # whatever comes of a damaged file
            self.refuse(error)

    def refuse(self, reason: Exception) -> None:
        """Hold nothing from now on, and say why."""
        self.index = {}
        warnings.warn(
            f"{self.path} cannot be used as machine code of finelu's kernels ({type(reason).__name__}: {reason}), "
            "so they are compiled at their first use. Install finelu again, or run `make kernels`.",
            stacklevel=2,
        )

    def find(self, stem: str, template_id: str) -> tuple[bytes, str] | None:
        """The code of an instance and its name there; None where it is not here, or of another text than `source`."""
        written, codes = self.index.get(stem, ("", {}))
        if template_id not in codes or written != digest(stem):
            return None
        try:
            member, name, first, size = codes[template_id]
            if member not in self.members:
                self.members[member] = self.zip.read(member)
            code = self.members[member][first : first + size]
            if len(code) != size:
                raise ValueError(f"{member} has {len(self.members[member])} bytes")
            return code, name
        except Exception as error:
            self.refuse(error)
            return None


@cache
def digest(stem: str) -> str:
    """The mark of machine code that was made from this text of `<stem>.cu`."""
    return hashlib.sha256(source(stem).encode()).hexdigest()


def architecture(capability: int, available) -> int | None:
    """The one of `available` whose code a GPU runs best: of its major number, the largest that is not above it."""
    least = capability if capability in APART else capability // 10 * 10
    return max((a for a in available if least <= a <= capability), default=None)


@cache
def archive(capability: int) -> Archive | None:
    """The archive for GPUs of this capability (90 for 9.0); None without one, and with FINELU_KERNELS=compile."""
    wish = os.environ.get("FINELU_KERNELS", "")
    if wish not in ("", "compile"):
        raise ParameterError(f"FINELU_KERNELS={wish!r}; 'compile', or nothing, is needed.")
    if wish or not FOLDER.is_dir():
        return None
    found = (re.fullmatch(r"sm_(\d+)\.zip", name) for name in os.listdir(FOLDER))
    best = architecture(capability, [int(match.group(1)) for match in found if match])
    return None if best is None else Archive(FOLDER / f"sm_{best}.zip")
