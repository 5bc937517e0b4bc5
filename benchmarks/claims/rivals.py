"""Claim: `finelu.solve` takes less time than any rival that solves the same system, each at the best of its settings.

A x = b with b uniform in [-0.5, 0.5], from a CSR matrix in memory to x, set-up included. Each file of
benchmarks/peers/systems is a rival; `--peers FOLDER` adds those of another folder. A rival has a process of its own.
In each round every setting is called once, in turn; the first round warms up, the medians of the others count. After
each call ||b - A x|| <= 1e-8 ||b|| is tested here, by the matrix as it was read: an x that fails has no time. A rival
whose own stopping rule ends too early gets a tolerance that is halved until its x passes, six times at most. Whether A
is symmetric is an argument of those that ask for it; it is tested outside of their time.

    python -m benchmarks.claims.rivals                                    # all that is installed
    python -m benchmarks.claims.rivals --peers my_folder --matrices poisson7:60,memplus --rounds 5
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import inspect
import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks.harness.course import carry_out
from benchmarks.harness.options import add_options, add_source, command
from benchmarks.harness.record import Record, Run, new_run
from benchmarks.harness.suite import Problem, files, matrix_folder, names_of
from benchmarks.harness.table import cell, mean, table
from benchmarks.harness.worker import ROUNDING, SEED, Worker, length, reason_of, serve_with
from benchmarks.peers.solvers import RTOL
from finelu.errors import FileError, ParameterError

PEERS = Path(__file__).resolve().parents[1] / "peers" / "systems"
OURS = "finelu"
ROUNDS, LIMIT = 5, 20.0
HALVED = 6  # times that a tolerance is halved at most
FAR = 3.0  # times the least time so far, from which a setting is not called again
NOT_FOR_IT = "not for such a matrix"
SYSTEMS = ("poisson7:60", "poisson5:300,300", "convection_diffusion:30", "elasticity:12,12,12")
QUICK = ("poisson7:16", "convection_diffusion:8")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


# The rivals -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Peer:
    """A file: its first line as `about`, its SETTINGS, the versions of its PACKAGES; `missing`: why it has no part."""

    name: str
    path: Path
    about: str
    settings: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    missing: str = ""


def loaded(path: Path) -> Any:
    """The module of a file. It is no part of a package, so that it may have the name of the library it imports."""
    spec = importlib.util.spec_from_file_location(f"finelu_peer_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def described(path: Path) -> Peer:
    """The peer of a file. A library that cannot be imported is missing; a file without SETTINGS is an error."""
    try:
        about = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
        module = loaded(path)
    except ImportError as error:
        return Peer(path.stem, path, about, missing=str(error))
    except SyntaxError as error:
        raise FileError(f"{path}, line {error.lineno}: {error.msg}.") from error
    settings = getattr(module, "SETTINGS", None)
    if not isinstance(settings, dict) or not settings or not all(map(callable, settings.values())):
        raise FileError(
            f"{path}: SETTINGS has to be a dictionary, name of a setting -> solve(A, b, rtol[, symmetric])."
        )
    versions = []
    for package in getattr(module, "PACKAGES", ()):
        try:
            versions.append(f"{package} {package_version(package)}")
        except PackageNotFoundError:
            versions.append(f"{package}, version unknown")
    return Peer(path.stem, path, about, tuple(settings), tuple(versions))


def peers(folders: Sequence[Path]) -> list[Peer]:
    """Those of all `.py` files of these folders, finelu first; FileError for a folder without any."""
    found: dict[str, Peer] = {}
    for folder in folders:
        paths = sorted(folder.glob("[!_]*.py"))
        if not paths:
            raise FileError(f"{folder}: no peer here, a .py file with SETTINGS.")
        found |= {path.stem: described(path) for path in paths}
    return sorted(found.values(), key=lambda peer: peer.name != OURS)


# In the process of a rival --------------------------------------------------------------------------------------------


def serve(pipe: Any, threads: int, path: Path) -> None:
    settings = loaded(path).SETTINGS
    serve_with(pipe, threads, partial(outcome, settings), lambda setting: None)


def outcome(settings: dict[str, Callable[..., Any]], setting: str, S: Any, limit: float, rtol: float) -> dict[str, Any]:
    """Call once: seconds, status ("" if the true residual passed), residual. Copies are handed out: they may change."""
    b = np.random.default_rng(SEED).uniform(-0.5, 0.5, S.shape[0])
    more = {"symmetric": is_symmetric(S)} if asks_for_symmetry(settings[setting]) else {}
    A, right = sp.csr_matrix(S, copy=True), b.copy()
    begin = time.perf_counter()
    try:
        found = settings[setting](A, right, rtol, **more)
    except Exception as error:  # a rival may fail in any way
        return {"seconds": time.perf_counter() - begin, "status": reason_of(error)}
    seconds = time.perf_counter() - begin
    x, seconds = found if isinstance(found, tuple) else (found, seconds)
    return {"seconds": seconds} | verdict(S, b, x)


def asks_for_symmetry(solve: Callable[..., Any]) -> bool:
    try:
        return "symmetric" in inspect.signature(solve).parameters
    except (TypeError, ValueError):  # a function of C may have no signature
        return False


def is_symmetric(S: Any) -> bool:
    """Whether S = S^T, tested once: the matrix keeps the answer."""
    if not hasattr(S, "finelu_symmetric"):
        S.finelu_symmetric = bool(abs(S - S.T).max() == 0)
    return S.finelu_symmetric


def verdict(S: Any, b: Any, x: Any) -> dict[str, Any]:
    """status, "" for an x of the right shape whose true residual passes; residual."""
    if x is None:
        return {"status": NOT_FOR_IT}
    x = np.asarray(x)
    if x.shape != b.shape or x.dtype.kind not in "fc":
        return {"status": f"x is {x.dtype} of shape {x.shape}"}
    with np.errstate(all="ignore"):
        residual = length(b - S @ x) / length(b)
    passed = residual <= ROUNDING * RTOL  # False for NaN
    return {"residual": residual, "status": "" if passed else f"residual {residual:.2g}"}


# The run --------------------------------------------------------------------------------------------------------------


class Rival:
    """One setting of one peer on one system: the times of its calls after the first, or why it has none."""

    def __init__(self, peer: Peer, setting: str):
        self.peer, self.setting = peer, setting
        self.times: list[float] = []
        self.rtol, self.status, self.residual = RTOL, "", None

    @property
    def seconds(self) -> float:
        return median(self.times) if self.times and not self.status else np.inf

    def call(self, worker: Worker, path: Path, limit: float, *, warm: bool) -> None:
        for halved in range(HALVED + 1 if warm else 1):
            self.rtol *= 0.5 if halved else 1.0
            found = worker.ask(path, self.setting, limit, self.rtol)
            self.status, self.residual = found["status"], found.get("residual")
            if self.residual is None or not self.status or self.residual > 1e3 * RTOL:
                break
        if not (warm or self.status):
            self.times.append(found["seconds"])


def measure(run: Run, name: str, path: Path, workers: dict[Peer, Worker], rounds: int, limit: float) -> None:
    rivals = [Rival(peer, setting) for peer in workers for setting in peer.settings]
    for turn in range(rounds + 1):
        least = min((r.seconds for r in rivals), default=np.inf)
        for rival in rivals[turn % len(rivals) :] + rivals[: turn % len(rivals)]:
            if not rival.status and not (rival.peer.name != OURS and np.inf > rival.seconds > FAR * least):
                rival.call(workers[rival.peer], path, limit, warm=turn == 0)
    for rival in rivals:
        ms = 1e3 * rival.seconds if np.isfinite(rival.seconds) else None
        detail = {"times": rival.times, "status": rival.status, "rtol": rival.rtol}
        what = (name, "solution", "cpu", rival.peer.name, rival.setting, ms)
        run.records.append(Record(*what, error=rival.residual, threads=run.options["threads"], detail=detail))


# The page -------------------------------------------------------------------------------------------------------------


def fastest(run: Run, name: str, *, ours: bool) -> Record | None:
    """The fastest setting of finelu, or of all others, that solved a system."""
    timed = [r for r in run.find(name) if r.numeric_ms is not None and (r.who == OURS) == ours]
    return min(timed, key=lambda r: r.numeric_ms or 0.0, default=None)


def pairs(run: Run) -> dict[str, tuple[float, float, str]]:
    """system -> ms of finelu, ms of the fastest other, and who that is; where both solved it."""
    found = {}
    for name in run.matrices:
        one, other = fastest(run, name, ours=True), fastest(run, name, ours=False)
        if one is not None and other is not None:
            found[name] = (one.numeric_ms or 0.0, other.numeric_ms or 0.0, f"{other.who} {other.variant}")
    return found


def claim(run: Run) -> str:
    """How often finelu loses, in a line."""
    found = [theirs / ours for ours, theirs, _ in pairs(run).values()]
    lost = sum(ratio < 1 for ratio in found)
    line = f"{len(found)} systems that finelu and another solved: finelu is slower on {lost}"
    return line + (f", mean of the fastest other / finelu {cell(mean(found))}.\n" if found else ".\n")


def page(run: Run) -> str:
    found = {name: theirs / ours for name, (ours, theirs, _) in pairs(run).items()}
    text = f"{run.heading()}\n{claim(run)}"
    order = sorted(run.matrices, key=lambda name: found.get(name, np.inf))
    settings = list(dict.fromkeys((r.who, r.variant) for r in run.records))
    heads = ("system", "rows", "fastest other / finelu", *(f"{who} {variant}, ms" for who, variant in settings))
    lines = []
    for name in order:
        records = {(r.who, r.variant): r for r in run.find(name)}
        times = (records[key].numeric_ms if key in records else None for key in settings)
        lines.append((name, run.matrices[name]["n"], found.get(name), *times))
    text += "\n## Times, losses first\n\n" + table(heads, lines)
    ended = [(r.matrix, f"{r.who} {r.variant}", r.detail["status"]) for r in run.records if r.detail["status"]]
    return text + ("\n## No time\n\n" + table(("system", "by", "why"), ended) if ended else "") + run.footing()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.rivals", description=__doc__.splitlines()[0])
    add_options(parser)
    add_source(parser)
    parser.add_argument("--threads", type=int, default=finelu.get_num_threads(), help="(default: %(default)s)")
    parser.add_argument("--peers", type=Path, action="append", default=[], help="a folder with further peers")
    parser.add_argument("--only", default="", help="names of peers with commas between them; finelu takes part anyway")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="(default: %(default)s)")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds of a call (default: %(default)s)")
    options = parser.parse_args(argv)
    if options.source:
        run = Run.load(options.source)
        run.publish(options.out, page(run))
        return 0
    if options.rounds < 1:
        raise ParameterError(f"--rounds {options.rounds}: at least 1 is needed.")
    for name in THREADS:
        os.environ[name] = str(options.threads)  # of the processes that this one starts
    run = new_run("rivals", gpu=False, machine_name=options.machine)
    run.options = {"threads": options.threads, "rounds": options.rounds, "limit, seconds": options.limit}
    known = peers([PEERS, *options.peers])
    wanted = set(options.only.split(",")) - {""} or {peer.name for peer in known}
    if unknown := wanted - {peer.name for peer in known}:
        raise ParameterError(f"--only: there is no {', '.join(sorted(unknown))}.")
    workers: dict[Peer, Worker] = {}
    for peer in known:
        if peer.missing:
            run.left_out[peer.name] = peer.missing
        elif peer.name in wanted | {OURS}:
            run.machine |= {f"peer {peer.name}": "; ".join((peer.about, *peer.versions))}
            workers[peer] = Worker(options.threads, partial(serve, path=peer.path))
    real = files(options.matrix_folder or matrix_folder())
    names = names_of(options.matrices) or (QUICK if options.quick else (*SYSTEMS, *sorted(real)))

    def one(name: str, S: sp.csr_matrix) -> str:
        path = Path(folder) / (re.sub(r"\W+", "-", name) + ".npz")
        sp.save_npz(path, S)
        run.matrices[name] = {"n": S.shape[0], "nnz": S.nnz}
        measure(run, name, path, workers, options.rounds, options.limit)
        path.unlink()
        ours, others = fastest(run, name, ours=True), fastest(run, name, ours=False)
        texts = [f"{r.who} {r.variant} {cell(r.numeric_ms)} ms" for r in (ours, others) if r is not None]
        return ", ".join(texts) or "no solver succeeded"

    with tempfile.TemporaryDirectory(prefix="finelu-rivals-") as folder:
        try:
            systems = ((name, Problem(name, real.get(name)).read()) for name in names)
            return carry_out(run, systems, one, options, page, claim)
        finally:
            for worker in workers.values():
                worker.stop()


if __name__ == "__main__":
    command(main)
