"""finelu inside of programs that solve sparse systems: each gives the results that it gives by its own solver.

    python tests/clients/run.py [CLIENT ...] [--folder F] [--json FILE]

Each client is installed into a virtual environment of its own, in F (default: `clients` in FINELU_CACHE), by pip from
its usual index. Its examples, `with_<client>.py`, run there with finelu's sources of this checkout, once with the
client's default solver and once with finelu. A line of the table has the rows of the largest system, the number of
calls of solvers, the times in them, and the relative difference of the results. In a run for "finelu" nothing is kept
from the run before; in one for "again", which repeats it, the analyses of the patterns are, as in a program that has
solved such systems before. A client that cannot be installed or
imported is named with the reason. The exit status is 1 only if a client that runs gives another result with finelu.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 1800  # s that a client may take, kernels compiled at first use included
CLIENTS = {
    "pandapower": ("pandapower",),
    "skfem": ("scikit-fem",),
    "simpeg": ("simpeg>=0.25",),  # without a bound pip goes back to 0.14, whose requirements are looser
    "fipy": ("fipy",),
    "felupe": ("felupe",),
    "lineax": ("lineax", "jax"),
    "pymoto": ("pymoto",),
    "bw2calc": ("bw2calc",),
    "devsim": ("devsim", "devsim-openblas"),
    "sfepy": ("sfepy",),
    "openseespy": ("openseespy",),
}
PYTHONS = {"openseespy": "3.12"}  # the version of Python that a client is built for; others take the one that runs this


def requirements(client: str) -> list[str]:
    """What pip installs: the client, and what finelu needs, with the direct solvers of its extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*CLIENTS[client], *project["dependencies"], *project["optional-dependencies"]["direct"]]


def interpreter(version: str) -> str | None:
    """A Python of this version: the one that runs this, one on the path, or one of pyenv's. None if there is none."""
    if sys.version.startswith(f"{version}."):
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    for found in (shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"))):
        if found and not subprocess.run([str(found), "-c", ""], capture_output=True).returncode:
            return str(found)
    return None


def install(client: str, folder: Path) -> str:
    """Make the environment of a client. "" if it is there, else why it cannot be had."""
    wanted, stamp, python = "\n".join(requirements(client)), folder / "installed.txt", folder / "bin" / "python"
    if stamp.exists() and stamp.read_text() == wanted:
        return ""
    base = interpreter(PYTHONS[client]) if client in PYTHONS else sys.executable
    if base is None:
        return f"it needs Python {PYTHONS[client]}, which is not installed"
    if not python.exists():
        subprocess.run([base, "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--prefer-binary"]
    ended = subprocess.run([*pip, *requirements(client)], capture_output=True, text=True)
    if ended.returncode:
        errors = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")]
        return (errors or ended.stderr.splitlines() or ["pip failed"])[-1]
    stamp.write_text(wanted)
    return ""


def version(client: str, folder: Path) -> str:
    name = CLIENTS[client][0].partition(">")[0]
    code = f"from importlib.metadata import version; print(version({name!r}))"
    return name + " " + subprocess.check_output([str(folder / "bin" / "python"), "-c", code], text=True).strip()


def run(client: str, folder: Path) -> list[dict] | str:
    """The rows of the table, or why there are none. Raises RuntimeError if the process ends without an answer."""
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch, "answer.json")
        command = [str(folder / "bin" / "python"), str(ROOT / "tests" / "clients" / "harness.py"), client, str(answer)]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "MPLBACKEND": "Agg", "JAX_PLATFORMS": "cpu"}
        try:
            ended = subprocess.run(command, cwd=scratch, env=environment, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return f"its examples did not end in {LIMIT} s"
        if not answer.exists():
            raise RuntimeError(f"the process ended with status {ended.returncode}:\n{ended.stderr[-2000:]}")
        return json.loads(answer.read_text())


def line(row: dict) -> str:
    if not row["finelu"]:
        return f"  {row['example']:40} {row['outcome']}"
    times = f"{row['default'] * 1e3:10.2f} {row['finelu'] * 1e3:10.2f} {row['again'] * 1e3:10.2f}"
    ratios = f"{row['finelu'] / row['default']:6.2f} {row['again'] / row['default']:6.2f}"
    figures = f"{row['rows']:7} {row['calls']:6} {times} {ratios}"
    return f"  {row['example']:40} {figures} {row['difference']:10.1e}  {row['outcome']}"


def mean_ratio(rows: list[dict], which: str = "finelu") -> float | None:
    """The geometric mean of finelu's times relative to the default's."""
    logs = [math.log(row[which] / row["default"]) for row in rows if row["finelu"]]
    return math.exp(sum(logs) / len(logs)) if logs else None


def main() -> int:
    cache = Path(os.environ.get("FINELU_CACHE") or Path.home() / ".cache" / "finelu")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clients", nargs="*", choices=[[], *CLIENTS], metavar="CLIENT", help=", ".join(CLIENTS))
    parser.add_argument("--folder", type=Path, default=cache / "clients", help="where the environments are kept")
    parser.add_argument("--json", type=Path, help="write the rows to this file, too")
    given = parser.parse_args()
    found, wrong, absent = {}, [], []
    heads = f"{'n':>7} {'solves':>6} {'own/ms':>10} {'finelu/ms':>10} {'again/ms':>10} {'ratio':>6} {'again':>6}"
    print(f"  {'':40} {heads} {'difference':>10}")
    for client in given.clients or CLIENTS:
        folder = given.folder / client
        if why := install(client, folder):
            absent.append(f"{client} cannot be had here: {why}")
            print(absent[-1], flush=True)
            continue
        name = version(client, folder)
        try:
            rows = run(client, folder)
        except RuntimeError as error:
            wrong.append(name)
            print(f"{name}: {error}", flush=True)
            continue
        if isinstance(rows, str):
            absent.append(f"{name} was not run: {rows}")
            print(absent[-1], flush=True)
            continue
        found[name] = rows
        mean, again = mean_ratio(rows), mean_ratio(rows, "again")
        print(name + (f": geometric mean of the ratios {mean:.2f}, again {again:.2f}" if mean else ""))
        print(*map(line, rows), sep="\n", flush=True)
        wrong += [f"{name}, {row['example']}" for row in rows if row["wrong"]]
    if given.json is not None:
        given.json.write_text(json.dumps({"clients": found, "absent": absent}, indent=1) + "\n")
    for text in absent:
        print(f"NOT run: {text}")
    for text in wrong:
        print(f"WRONG: {text}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
