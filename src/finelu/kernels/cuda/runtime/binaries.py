"""Machine code of the kernels: what a wheel carries, and what NVRTC made on this machine before.

A wheel has a zip for each architecture, written by tools/build_kernels.py. `binaries/sm_90.zip` has the code of each
template instance of instances.py by itself, as NVRTC makes it at run time. A member, such as `elimination/double,int`,
is the codes of the instances of a `.cu` file with the same types, one behind the other: they are much alike, so that
together they take a third of the room. `index.json` has

    {stem: {"source": sha256 of sources.source(stem), "codes": {template id: [member, name in the code, first, bytes]}}}

Code that was compiled on this machine is kept in the user's cache folder, see finelu/machine_code.py: a folder for each
`.cu` file and compiler, a file for each instance.

Importable without CuPy.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import zlib
from functools import cache
from pathlib import Path

from finelu import compiling, machine_code
from finelu.kernels.cuda.runtime.sources import source
from finelu.machine_code import is_wanted

FOLDER = Path(__file__).parents[1] / "binaries"
APART = (87, 101)  # Jetson and its like, which run no code of other GPUs, whatever its number


class Archive(machine_code.Archive):
    """The zip of a wheel."""

    def __init__(self, path: Path):
        super().__init__(path)
        self.members: dict[str, bytes] = {}

    def holds(self, stem: str, template_id: str) -> bool:
        """Whether the code of an instance is here, and made of the present text of `source`."""
        try:
            kernels = self.index.get(stem)
            return kernels is not None and template_id in kernels["codes"] and kernels["source"] == digest(stem)
        except Exception as error:  # whatever comes of a damaged file
            self.refuse(error)
            return False

    def find(self, stem: str, template_id: str) -> tuple[bytes, str] | None:
        """The code of an instance and its name there; None where `holds` is False."""
        if not self.holds(stem, template_id):
            return None
        try:
            member, name, first, size = self.index[stem]["codes"][template_id]
            if member not in self.members:
                self.members[member] = self.zip.read(member)
            code = self.members[member][first : first + size]
            if len(code) != size:
                raise ValueError(f"{member} has {len(self.members[member])} bytes")
            return code, name
        except Exception as error:  # whatever comes of a damaged file
            self.refuse(error)
            return None


class Kept:
    """The code of the instances of `<stem>.cu` in the user's cache folder.

    made_by : all that decides the code besides the source: compiler, options, architecture.
    """

    def __init__(self, stem: str, made_by: tuple[object, ...]):
        root = machine_code.folder()
        mark = hashlib.sha256(repr((digest(stem), made_by)).encode()).hexdigest()[:20]
        self.folder = root and root / f"cuda.{stem.replace('/', '.')}-{mark}"

    def _file(self, template_id: str) -> Path | None:
        return self.folder and self.folder / (hashlib.sha256(template_id.encode()).hexdigest()[:20] + ".cubin")

    def find(self, template_id: str) -> tuple[bytes, str] | None:
        """The code of an instance and its name there, as given to `put`; None where there is none, or, with a line that
        names the file, where it is damaged."""
        path = self._file(template_id)
        if path is None:
            return None
        try:
            head, _, code = path.read_bytes().partition(b"\n")
            checksum, of, name = json.loads(head)
            if checksum != _checksum(of, name, code) or of != template_id:
                raise ValueError("its bytes are not those that were written")
        except OSError:
            return None
        except Exception as error:  # whatever comes of a damaged file
            compiling.tell(f"finelu: {path} is damaged ({error}); the kernel is compiled anew")
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        machine_code.note_use(path.parent)
        return code, name

    def put(self, template_id: str, code: bytes, name: str) -> bool:
        """Keep the code of an instance: whether that was possible."""
        path = self._file(template_id)
        if path is None:
            return False
        head = json.dumps([_checksum(template_id, name, code), template_id, name]).encode()
        try:
            machine_code.write(path, head + b"\n" + code)
        except OSError:  # no disk space, or no permission
            return False
        machine_code.keep_bounded()
        return True


def _checksum(template_id: str, name: str, code: bytes) -> int:
    return zlib.crc32(code, zlib.crc32(f"{template_id} {name}".encode()))


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
    if not is_wanted() or not FOLDER.is_dir():
        return None
    found = (re.fullmatch(r"sm_(\d+)\.zip", name) for name in os.listdir(FOLDER))
    best = architecture(capability, [int(match.group(1)) for match in found if match])
    return None if best is None else Archive(FOLDER / f"sm_{best}.zip")
