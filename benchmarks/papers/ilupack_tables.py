"""Tables 2 to 5 of the paper on ILUPACK's GMRES from a record, with the paper's numbers."""

from __future__ import annotations

from itertools import pairwise

from benchmarks.harness.record import Record, Run
from benchmarks.harness.table import mean, ratio, table
from benchmarks.papers.ilupack_baseline import COPIES, MAXITER, MGSO, OTHER, PREC, RESTART, RTOL, SEED, SPMV

VARIANTS = {
    "a": "(a) CPU",
    "b": "(b) baseline",
    "p": "(p) the paper's own",
    "c": "(c) finelu",
    "s": "(s) the M of (b)",
    "l": "(l) the M of (b), level order",
    "o": "(o) finelu, level order",
    "i": "(i) finelu, own order",
}
TABLE_2 = {  # n and nnz, which counts one triangle of a symmetric matrix
    "apache2": (715176, 2766523),
    "ASIC_320ks": (321671, 1827807),
    "atmosmodd": (1270432, 8814880),
    "cage13": (445315, 7479343),
    "ecology2": (999999, 2997995),
    "G3_circuit": (1585478, 4623152),
    "lung2": (109460, 492564),
    "parabolic_fem": (525825, 2100225),
    "ship_003": (121728, 4103881),
    "thermomech_dK": (204316, 2846228),
}
# Seconds of SpMV, application of M^-1, MGSO, other, total. Table 3, CPU (an i7-6700; "other" is the rest of the
# total); Tables 4 and 5, the baseline and the paper's own, with a TITAN X (Maxwell) and a GTX 1080 Ti (Pascal).
ITERATIONS = {
    "apache2": 5,
    "ASIC_320ks": 2,
    "atmosmodd": 46,
    "cage13": 7,
    "ecology2": 5,
    "G3_circuit": 5,
    "lung2": 4,
    "parabolic_fem": 3,
    "ship_003": 5,
    "thermomech_dK": 500,
}
TABLE_3 = {
    "apache2": (0.016, 0.072, 0.026, 0.018, 0.132),
    "ASIC_320ks": (0.006, 0.015, 0.002, 0.007, 0.030),
    "atmosmodd": (0.388, 5.003, 1.561, 0.083, 7.035),
    "cage13": (0.058, 0.122, 0.029, 0.012, 0.221),
    "ecology2": (0.020, 0.097, 0.042, 0.025, 0.184),
    "G3_circuit": (0.034, 0.165, 0.067, 0.041, 0.307),
    "lung2": (0.002, 0.011, 0.002, 0.003, 0.018),
    "parabolic_fem": (0.008, 0.032, 0.007, 0.013, 0.060),
    "ship_003": (0.021, 0.041, 0.004, 0.003, 0.069),
    "thermomech_dK": (1.630, 10.312, 2.697, 0.078, 14.717),
}
TABLE_4 = {
    "apache2": ((0.007, 0.020, 0.025, 0.018, 0.070), (0.007, 0.018, 0.005, 0.018, 0.048)),
    "ASIC_320ks": ((0.002, 0.005, 0.002, 0.007, 0.016), (0.002, 0.003, 0.001, 0.007, 0.013)),
    "atmosmodd": ((0.130, 2.338, 1.564, 0.082, 4.115), (0.131, 1.064, 0.177, 0.082, 1.454)),
    "cage13": ((0.008, 0.063, 0.026, 0.011, 0.108), (0.008, 0.027, 0.006, 0.011, 0.052)),
    "ecology2": ((0.009, 0.025, 0.037, 0.025, 0.096), (0.009, 0.026, 0.006, 0.025, 0.067)),
    "G3_circuit": ((0.014, 0.042, 0.060, 0.040, 0.156), (0.014, 0.043, 0.009, 0.040, 0.106)),
    "lung2": ((0.001, 0.011, 0.002, 0.003, 0.017), (0.001, 0.005, 0.002, 0.003, 0.011)),
    "parabolic_fem": ((0.003, 0.008, 0.008, 0.012, 0.031), (0.003, 0.007, 0.002, 0.012, 0.024)),
    "ship_003": ((0.003, 0.026, 0.004, 0.003, 0.035), (0.003, 0.010, 0.002, 0.003, 0.017)),
    "thermomech_dK": ((0.308, 10.856, 2.692, 0.078, 13.934), (0.311, 3.650, 0.537, 0.078, 4.576)),
}
TABLE_5 = {
    "apache2": ((0.008, 0.017, 0.025, 0.049, 0.098), (0.008, 0.017, 0.004, 0.049, 0.078)),
    "ASIC_320ks": ((0.002, 0.004, 0.001, 0.021, 0.027), (0.002, 0.003, 0.001, 0.021, 0.026)),
    "atmosmodd": ((0.176, 1.507, 1.779, 0.164, 3.625), (0.169, 0.861, 0.173, 0.165, 1.368)),
    "cage13": ((0.010, 0.047, 0.022, 0.030, 0.108), (0.010, 0.023, 0.005, 0.031, 0.069)),
    "ecology2": ((0.010, 0.023, 0.038, 0.069, 0.140), (0.010, 0.025, 0.005, 0.068, 0.109)),
    "G3_circuit": ((0.016, 0.036, 0.066, 0.110, 0.229), (0.016, 0.040, 0.008, 0.109, 0.174)),
    "lung2": ((0.001, 0.007, 0.002, 0.007, 0.017), (0.001, 0.004, 0.001, 0.007, 0.014)),
    "parabolic_fem": ((0.003, 0.006, 0.007, 0.034, 0.051), (0.003, 0.006, 0.002, 0.034, 0.046)),
    "ship_003": ((0.002, 0.015, 0.003, 0.008, 0.028), (0.002, 0.007, 0.001, 0.008, 0.019)),
    "thermomech_dK": ((0.367, 7.015, 2.102, 0.100, 9.584), (0.366, 2.429, 0.487, 0.099, 3.381)),
}
# The paper's own matrices among ours (parabolic_fem in another order of its nodes), and others of their kind.
OWN = {"parabolic_fem_nat": "parabolic_fem", "cage13": "cage13"}
LIKE = {
    "apache2_like": "apache2",
    "atmosmodd_like": "atmosmodd",
    "ecology2_like": "ecology2",
    "g3_circuit_like": "G3_circuit",
    "cage10": "cage13",
    "cage11": "cage13",
}


def theirs(name: str) -> str:
    """The paper's name of a matrix that is its own or of its kind, or of the lower triangle of one; "" for others."""
    name = whole(name)
    return OWN.get(name) or LIKE.get(name, "")


def lower(name: str) -> str:
    """The name of the lower triangle of a matrix here."""
    return f"tril({name})"


def whole(name: str) -> str:
    return name.removeprefix("tril(").removesuffix(")")


def marked(name: str) -> str:
    """The name, with that of the paper: "=" for its matrix, "~" for one of its kind."""
    return f"{name} {'=' if whole(name) in OWN else '~'} {theirs(name)}" if theirs(name) else name


# Measurements ---------------------------------------------------------------------------------------------------------


def stage(record: Record | None, name: str) -> float | None:
    """Milliseconds of a stage, or of "total"; None if there is no record."""
    return record and (record.numeric_ms if name == "total" else record.detail["stages"][name])


def comparable(run: Run, matrix: str) -> tuple[Record, Record] | None:
    """(b) and (c), if both converged or both did not within MAXITER iterations."""
    b, c = (run.one(matrix=matrix, variant=v) for v in "bc")
    return (b, c) if b and c and b.detail["converged"] == c.detail["converged"] else None


def gain(run: Run, matrix: str, name: str) -> float | None:
    """How many times faster (c) is than (b) in a stage, in Gram-Schmidt with its copies, or in "total"."""
    pair = comparable(run, matrix)
    if pair is None:
        return None
    if name == "MGSO with copies":
        return ratio(stage(pair[0], MGSO) + stage(pair[0], COPIES), stage(pair[1], MGSO))
    return ratio(stage(pair[0], name), stage(pair[1], name))


# Tables ---------------------------------------------------------------------------------------------------------------


def claim_table(run: Run) -> str:
    """The three claims over all matrices; and over the paper's and those of their kind."""
    lines = []
    for label, name, bar in (
        ("application of M^-1", PREC, 3),
        ("Gram-Schmidt, copies not counted", MGSO, 10),
        ("Gram-Schmidt with its copies", "MGSO with copies", None),
        ("whole GMRES", "total", 3),
    ):
        for who, names in (("all", list(run.matrices)), ("the paper's", [m for m in run.matrices if theirs(m)])):
            gains = {m: s for m in names if (s := gain(run, m, name))}
            average = mean(gains.values())
            worst = min(gains, key=lambda m: gains[m]) if gains else None
            holds = "not measured" if average is None else "" if bar is None else "yes" if average >= bar else "no"
            lines.append((label, who, len(gains), bar, average, worst and gains[worst], worst, holds))
    header = ("(c) over (b)", "matrices", "of them", "at least", "geometric mean", "worst", "on", "holds")
    return table(header, lines)


def matrix_table(run: Run) -> str:
    """Table 2."""
    lines: list[tuple] = []
    for name, f in run.matrices.items():
        sizes = ", ".join(map(str, f["levels"]))
        lines.append((marked(name), f["n"], f["nnz"], f["nnz"] / f["n"], f["kind"], sizes, f["fill"], f["seconds"]))
        if theirs(name):
            n, nnz = TABLE_2[theirs(name)]
            lines.append(("paper", n, nnz, nnz / n, "", "", None, None))
    header = ("matrix", "n", "nnz", "nnz/n", "kind", "rows of the levels", "fill", "set-up s")
    return table(header, lines)


def stage_table(run: Run) -> str:
    """Table 3: milliseconds and shares of the stages, of (a) and (b), and of (c) too; the paper's below."""
    lines: list[tuple] = []

    def line(name, variant, iterations, times, copies, other, total, residual):
        shares = [part for ms in times for part in (ms, f"{100 * ms / total:.1f}")]
        lines.append((name, variant, iterations, *shares, copies, other, total, residual))

    for name in run.matrices:
        for variant, label in VARIANTS.items():
            record = run.one(matrix=name, variant=variant)
            if record is None:
                continue
            iterations = record.detail["iterations"]
            shown = str(iterations) if record.detail["converged"] else f">{iterations}"
            times = [stage(record, s) for s in (SPMV, PREC, MGSO)]
            copies = stage(record, COPIES) if variant == "b" else None
            line(marked(name), label, shown, times, copies, stage(record, OTHER), record.numeric_ms, record.error)
        if paper := theirs(name):
            for label, row in (("CPU, i7-6700", TABLE_3[paper]), ("baseline, TITAN X", TABLE_4[paper][0])):
                *times, other, total = (1e3 * seconds for seconds in row)
                line("paper", label, ITERATIONS[paper], times, None, other, total, None)
    header = (
        "matrix",
        "variant",
        "#It.",
        "SpMV",
        "%",
        "M^-1",
        "%",
        "MGSO",
        "%",
        "copies",
        "other",
        "total",
        "residual",
    )
    return table(header, lines) if lines else "Absent: not measured in this run.\n"


def gain_table(run: Run) -> str | None:
    """Tables 4 and 5: milliseconds of (b) and (c), and how many times faster (c) is."""
    lines: list[tuple] = []

    def line(name, where, iterations, pairs):
        lines.append((name, where, iterations, *(v for b, c in pairs for v in (b, c, ratio(b, c)))))

    for name in run.matrices:
        pair = comparable(run, name)
        if pair is None:
            continue
        iterations = "/".join(str(record.detail["iterations"]) for record in pair)
        stages = [tuple(stage(record, s) for record in pair) for s in (SPMV, PREC, MGSO, OTHER, "total")]
        line(marked(name), "here", iterations, stages)
        if paper := theirs(name):
            for where, (b, c) in (("Maxwell", TABLE_4[paper]), ("Pascal", TABLE_5[paper])):
                pairs = [(1e3 * x, 1e3 * y) for x, y in zip(b, c, strict=True)]
                line("paper", where, ITERATIONS[paper], pairs)
    columns = [f"{s} {v}" for s in (SPMV, PREC, MGSO, OTHER, "total") for v in ("(b)", "(c)", "(b)/(c)")]
    return table(("matrix", "where", "#It. (b)/(c)", *columns), lines) if lines else None


def same_table(run: Run, variants: str) -> str | None:
    """Variants that have one preconditioner: milliseconds, and how many times faster each is than the one before."""
    lines: list[tuple] = []
    gains: dict[str, list[float]] = {}
    pairs = list(pairwise(variants))
    for name, facts in run.matrices.items():
        found = [run.one(matrix=name, variant=v) for v in variants]
        if not all(record and record.detail["converged"] for record in found):
            continue
        cells: list = [marked(name), facts["levels"][0], "/".join(str(r.detail["iterations"]) for r in found)]
        for what in (PREC, MGSO, "total"):
            times = [stage(record, what) for record in found]
            quotients = [ratio(x, y) for x, y in pairwise(times)]
            for (v, w), quotient in zip(pairs, quotients, strict=True):
                gains.setdefault(f"{what} ({v})/({w})", []).append(quotient)
            cells += [*times, *quotients]
        lines.append((*cells, *(record.detail.get("set-up") for record in found), found[0].detail.get("entries a row")))
    if not lines:
        return None
    shown = [f"({v})" for v in variants]
    columns = [f"{s} {v}" for s in (PREC, MGSO, "total") for v in (*shown, *(f"({v})/({w})" for v, w in pairs))]
    header = ("matrix", "first level", f"#It. {'/'.join(shown)}", *columns, *(f"set-up s {v}" for v in shown),
              "entries a row")  # fmt: skip
    means = "; ".join(f"{what} {mean(found):.2f} (worst {min(found):.2f})" for what, found in gains.items())
    return f"{table(header, lines)}\nGeometric means on {len(lines)} matrices: {means}.\n"


def summary(run: Run) -> str:
    """A row a matrix: iterations and ms of all of GMRES, with the M of (b) in three ways and with finelu's in two."""
    lines = []
    for name, facts in run.matrices.items():
        found = [run.one(matrix=name, variant=v) for v in "bslco"]
        if all(record and record.detail["converged"] for record in found):
            (same, *_), (ours, _) = ([r.detail["iterations"] for r in part] for part in (found[:3], found[3:]))
            lines.append((name, facts["n"], same, *(r.numeric_ms for r in found[:3]), ours,
                          *(r.numeric_ms for r in found[3:])))  # fmt: skip
    header = ("matrix", "rows", "iterations", *("cuSPARSE (b)", "own order (s)", "level order (l)"), "iterations",
              *('"auto" (c)', "level order (o)"))  # fmt: skip
    return table(header, lines)


def application_table(run: Run) -> str | None:
    """One application of M^-1 by itself: every way of it."""
    lines = []
    for name in run.matrices:
        a, b, c = (run.one(matrix=name, variant=v) for v in "abc")
        ms = [r and r.detail["application"]["ms"] for r in (a, b, c)]
        spsv = c.detail.get("application by SpSV", {}).get("ms") if c else None
        if any(ms):
            apart = max((r.detail.get("apart", 0.0) for r in (b, c) if r), default=None)
            lines.append((marked(name), ms[0], ms[1], spsv, ms[2], ratio(ms[1], ms[2]), ratio(spsv, ms[2]), apart))
    header = ("matrix", "(a) CPU", "(b) SpSV", "SpSV, (c)'s parts", "(c)", "(b)/(c)", "SpSV/(c), same parts", "apart")
    return table(header, lines) if lines else None


def page(run: Run) -> str:
    absent = "Absent: not measured in this run, which had no GPU.\n"
    text = run.heading()
    text += (
        "\n`=`: the paper's matrix (parabolic_fem in another order of its nodes). `~`: of its kind, other entries. "
        f"Milliseconds, the paper's too. GMRES({RESTART}), b = A x with x standard normal (seed {SEED}), "
        f"||b - A x|| <= {RTOL:g} ||b||, computed by the benchmark, at most {MAXITER} iterations (`>`: not converged); "
        "the paper does not give its right-hand side and tolerance. Its nnz is that of one triangle where A is "
        "symmetric; `tril(...)`: that triangle alone, taken for the matrix, whose iterations are about the paper's. "
        f"Its matrices that are not at hand: {', '.join(sorted(set(TABLE_2) - {theirs(m) for m in run.matrices}))}. "
        "Stages come from a run with a clock around each, the total from one without, so that they do not quite add "
        "up. Copies are those of the basis vectors of (b), a column of their own. (p): equation (11) with solves "
        "level by level, the basis on the GPU and Gram-Schmidt by cuBLAS, a call for each dot, axpy and norm, as the "
        "paper proposes.\n"
    )
    text += f"\n## Claims\n\n{claim_table(run)}"
    text += f"\n## Table 2: the matrices\n\n{matrix_table(run)}"
    text += f"\n## Table 3: the stages of GMRES, ms and % of the total\n\n{stage_table(run)}"
    text += f"\n## Tables 4 and 5: (b), (c) and their ratio, ms\n\n{gain_table(run) or absent}"
    text += f"\n## One preconditioner, that of (b), ms\n\n{same_table(run, 'bsl') or absent}"
    order = (
        "ico" if any(run.find(matrix=name, variant="i") for name in run.matrices) else "co"
    )  # older records lack (i)
    text += f"\n## One preconditioner, that of (c), ms\n\n{same_table(run, order) or absent}"
    text += f"\n## One application of M^-1, ms\n\n{application_table(run) or absent}"
    text += (
        "\n(b) applies equation (11), with two solves each with L_B and U_B a level; (c) keeps L_G and U_F on the GPU, "
        "for one each. `SpSV, (c)'s parts`: cuSPARSE's with the same formula as (c). apart: the largest relative "
        "difference between SpSV's result and that of the factors with the same parts.\n"
    )
    return text + run.footing()
