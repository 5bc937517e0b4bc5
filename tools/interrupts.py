"""Interrupt finelu at random moments, and look at what comes of it.

    python tools/interrupts.py [--times 100] [--gpu] [name ...]

For each name below: the work is done once undisturbed; then, `times` times, SIGINT comes at a random moment of it.
KeyboardInterrupt must come, always and nothing else, and the work done next must give the same bits as undisturbed; of
factors whose update was interrupted, `solve` works as before, or says that they are invalid. Prints a line for each
name; ends with status 1 where something else happened. A crash ends the process.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
from collections import Counter
from time import perf_counter, sleep

import numpy as np

import finelu as fl
from finelu.device import namespace, synchronize, to_host
from finelu.errors import FineluError
from finelu.preconditioners.direct import cudss

RECIPES = {
    "ilu0": fl.ILU0(),
    "ic0": fl.IC0(),
    "iluk": fl.ILUK(level=2),
    "milu0": fl.MILU0(),
    "ilut": fl.ILUT(),
    "ilut_crout": fl.ILUT(form="crout"),
    "ict": fl.ICT(),
    "parilu": fl.ParILU(),
    "paric": fl.ParIC(),
    "parilut": fl.ParILUT(),
    "parict": fl.ParICT(),
    "multilevel": fl.MultilevelILU(dense_size=50),
    "multilevel_general": fl.MultilevelILU(dense_size=50, symmetric=False),
    "jacobi": fl.Jacobi(),
    "block_jacobi": fl.BlockJacobi(block_size=8),
    "schwarz": fl.Schwarz(size=60),
    "block_ilu0": fl.BlockILU0(block_size=4),
    "cpr": fl.CPR(block_size=4),
    "sparse_lu": fl.SparseLU(),
}
GO_ON = ("parilut", "parict")  # their update begins with the pattern that the last one has reached


class Interrupted:
    """Sends SIGINT to this process after `seconds`. The main thread waits for it, if it has not come before."""

    def __init__(self, seconds: float):
        self.thread = threading.Thread(target=self._send, args=(seconds,))

    @staticmethod
    def _send(seconds: float) -> None:
        sleep(seconds)
        os.kill(os.getpid(), signal.SIGINT)

    def during(self, work) -> str:
        """What came: the name of an exception, or "nothing".

        An interrupt that comes into the destructor of another package's object is Python's to drop: it counts as come.
        """
        dropped: list[str] = []

        def drop(what) -> None:
            foreign = not getattr(what.object, "__module__", "").startswith("finelu")
            if isinstance(what.exc_value, KeyboardInterrupt) and foreign:
                dropped.append("KeyboardInterrupt")
            else:
                sys.__unraisablehook__(what)

        sys.unraisablehook = drop
        try:
            self.thread.start()
            work()
            self.thread.join()
            for _ in range(1000):  # a signal waits for the next Python code
                sleep(1e-3)
        except BaseException as error:
            return type(error).__name__
        finally:
            self.thread.join()
            sys.unraisablehook = sys.__unraisablehook__
        return dropped[0] if dropped else "nothing"


def bits(result) -> bytes:
    synchronize(result)
    return to_host(result).tobytes()


def interrupted(work, check, times: int, seed: int) -> Counter:
    """What came of `times` interruptions of work(): KeyboardInterrupt, other exceptions, what check() found wrong."""
    chance, found = random.Random(seed), Counter()
    work()
    start = perf_counter()
    work()
    seconds = perf_counter() - start
    for _ in range(times):
        found[Interrupted(chance.random() * seconds).during(work)] += 1
        found[check()] += 1
    del found[""]
    return found


def of_recipe(name: str, A, b, times: int) -> Counter:
    recipe, held = RECIPES[name], {}

    def work():
        held["F"] = recipe.factor(A)
        held["F"].update(A)
        held["F"].solve(b)

    F = recipe.factor(A)
    factored = bits(F.solve(b))
    updated = bits(F.update(A).solve(b))  # another plan, perhaps, and so another order of a few sums

    def check() -> str:
        F = held["F"]
        try:
            if bits(F.solve(b)) not in (factored, updated):
                return "factors that are neither the old, nor the new, nor invalid"
        except FineluError:  # they say that they are invalid
            again = bits(F.update(A).solve(b))
            if name not in GO_ON and again != updated:
                return "other bits after an update"
        work()
        return "" if bits(held["F"].solve(b)) == updated else "other bits"

    return interrupted(work, check, times, seed=len(name))


def of_solve(A, b, times: int) -> Counter:
    expected = bits(fl.solve(A, b, recipe="ilut", method="gmres").x)

    def check() -> str:
        return "" if bits(fl.solve(A, b, recipe="ilut", method="gmres").x) == expected else "other bits"

    return interrupted(lambda: fl.solve(A, b, recipe="ilut", method="gmres"), check, times, seed=1)


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join([*RECIPES, 'solve'])} (all)")
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--size", type=int, default=16, help="of the cube whose Poisson problem is factored")
    parser.add_argument("--gpu", action="store_true", help="with A on the GPU: between launches")
    given = parser.parse_args(arguments)
    if unknown := set(given.names) - {*RECIPES, "solve"}:
        parser.error(f"there is no {unknown.pop()}")
    A = fl.as_csr(fl.gallery.problem(f"poisson7:{given.size}"))
    if given.gpu:
        import cupy

        A = A.on(cupy)
        if not cudss.missing():  # which has other bits each time by default
            RECIPES["sparse_lu"] = fl.SparseLU(backend="cudss", deterministic=True)
    b = namespace(A.data).asarray(np.random.default_rng(0).standard_normal(A.n))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    good = True
    for name in given.names or [*RECIPES, "solve"]:
        found = of_solve(A, b, given.times) if name == "solve" else of_recipe(name, A, b, given.times)
        good &= found == {"KeyboardInterrupt": given.times}
        print(f"{name:20} {dict(found)}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
