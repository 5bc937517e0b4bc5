"""Selection: by definition and by twin for every type, size and kind of values; ties; NaN; the plans on the device."""

from pathlib import Path

import numpy as np
import pytest
from checks import DTYPES, one_line, refused, run_at_once
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from finelu import MatrixError, ParameterError, set_num_threads, threads
from finelu.device import require_gpu
from finelu.errors import DeviceError
from finelu.kernels import cpu, kernels_for, reference
from finelu.kernels.cpu import selection as cpu_selection
from finelu.selection import kth_smallest, threshold

REALS = ("float32", "float64")
SIZES = (1, 2, 31, 1024, 1025, 4096, 4097, 8193, 70_001)
EXAMPLES = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
COUNTINGS = ("lanes", "shared", "shared_aggregated", "global", "global_aggregated")


@pytest.fixture(autouse=True)
def two_threads():
    """Every test begins with two threads, whatever the machine has, and samples are taken of some thousand values."""
    before, small = threads._wanted, cpu_selection.SMALL
    set_num_threads(2)
    cpu_selection.SMALL = 3000
    yield
    cpu_selection.SMALL = small
    set_num_threads(before or threads.available_cores())


@pytest.fixture
def cuda():
    """The kernels of the GPU, on a machine with one."""
    try:
        require_gpu()
    except DeviceError as error:
        pytest.skip(str(error))
    from finelu.kernels import cuda

    return cuda


KINDS = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "uniform": lambda rng, n: rng.uniform(0, 1, n),
    "descending": lambda rng, n: -np.sort(rng.standard_normal(n)),
    "seven values": lambda rng, n: rng.integers(-3, 4, n).astype(float),
    "all equal": lambda rng, n: np.full(n, -2.5),
    "half zero": lambda rng, n: np.where(rng.random(n) < 0.5, 0.0, rng.standard_normal(n)),
    "close together": lambda rng, n: 1 + 1e-12 * rng.integers(0, 10_000, n),
    "all magnitudes": lambda rng, n: 10.0 ** rng.uniform(-37, 37, n) * rng.choice([-1, 1], n),
    "infinite": lambda rng, n: np.where(rng.random(n) < 0.3, np.inf, rng.standard_normal(n)) * rng.choice([-1, 1], n),
    "signed zeros": lambda rng, n: rng.choice([-0.0, 0.0, 1.0, -1.0], n),
}


def numbers(kind, n, dtype="float64", seed=0):
    """n numbers of a kind; complex ones with parts of that kind."""
    rng = np.random.default_rng(seed)
    values = np.empty(n, dtype)
    values.real = KINDS[kind](rng, n)
    if values.dtype.kind == "c":
        values.imag = KINDS[kind](rng, n)
    return values


def ranks(n):
    """The ends, the middle and places between."""
    return sorted({0, n // 3, n // 2, n - 1, n} & set(range(n + 1)))


def same(got, want, dtype):
    """The same number; of complex numbers a magnitude may be off by rounding."""
    if np.dtype(dtype).kind == "c" and np.isfinite(want):
        return abs(got - want) <= 4 * np.finfo(dtype).eps * want
    return got == want


def magnitudes(values):
    return np.hypot(values.real, values.imag) if values.dtype.kind == "c" else abs(values)


# By definition and by twin


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_threshold_is_the_one_of_the_reference(backend, dtype, kind):
    for n in SIZES if dtype == "float64" else SIZES[-2:]:
        values = numbers(kind, n, dtype)
        for k in ranks(n):
            got = threshold(backend.move(values), k)
            assert got.dtype == values.real.dtype
            want, _ = reference.selection.select(magnitudes(values), k)
            assert same(got, want, dtype), (n, k)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", REALS)
def test_kth_smallest_compares_values_with_their_signs(backend, dtype, kind):
    for n in SIZES[-4:]:
        values = numbers(kind, n, dtype)
        for k in ranks(n)[1:]:
            assert kth_smallest(backend.move(values), k) == np.sort(values)[k - 1], (n, k)


@pytest.mark.parametrize("method", ["sampleselect", "quickselect"])
@pytest.mark.parametrize("dtype", REALS)
def test_methods_agree(backend, dtype, method):
    for kind in KINDS:
        values = numbers(kind, 30_011, dtype)
        got = threshold(backend.move(values), 12_345, method=method)
        assert got == reference.selection.select(values, 12_345)[0], kind
        assert kth_smallest(backend.move(values), 12_345, method=method) == np.sort(values)[12_344], kind


def test_threshold_drops_k_where_all_magnitudes_differ(backend):
    values = np.random.default_rng(0).permutation(np.arange(1, 5001) * 0.5) * np.where(np.arange(5000) % 2, 1, -1)
    for k in (0, 1, 2500, 4999, 5000):
        assert np.count_nonzero(abs(values) < threshold(backend.move(values), k)) == k


def test_nothing_and_one(backend):
    assert threshold(backend.move(np.empty(0)), 0) == np.inf
    assert threshold(backend.move(np.array([-3.0])), 0) == 3
    assert threshold(backend.move(np.array([-3.0])), 1) == np.inf
    assert kth_smallest(backend.move(np.array([-3.0])), 1) == -3


@EXAMPLES
@given(
    values=hnp.arrays(
        st.sampled_from(["float32", "float64"]), st.integers(1, 60), elements=st.floats(width=16, allow_nan=False)
    ),
    share=st.floats(0, 1),
    method=st.sampled_from(["sampleselect", "quickselect"]),
)
def test_any_values(backend, values, share, method):
    k = round(share * (values.size - 1))
    assert threshold(backend.move(values), k, method=method) == np.sort(abs(values))[k]
    assert kth_smallest(backend.move(values), k + 1, method=method) == np.sort(values)[k]


@pytest.mark.parametrize("order", ["values", "magnitudes"])
@pytest.mark.parametrize("kind", KINDS)
def test_below_counts_what_is_less(backend, kind, order):
    values = backend.move(numbers(kind, 20_001))
    for exact in (True, False):
        plan = kernels_for(values).selection.Selection(values.size, values.dtype, order=order, exact=exact)
        for rank in ranks(values.size)[:-1]:
            found = plan.select(values, rank)[0]
            fetched = backend.fetch(values)
            ordered = fetched if order == "values" else abs(fetched)
            assert int(plan.below[0]) == np.count_nonzero(ordered < float(found)), (exact, rank)


@pytest.mark.parametrize("order", ["values", "magnitudes"])
@pytest.mark.parametrize("decimals", [0, 1, 2])
def test_below_counts_what_is_less_where_the_value_is_one_of_many_equal_ones(decimals, order):
    values = np.round(np.random.default_rng(decimals).standard_normal(32_769), decimals)
    sizes = values if order == "values" else abs(values)
    plan = cpu_selection.Selection(values.size, values.dtype, order=order)
    begins = np.searchsorted(np.sort(sizes), np.unique(sizes))  # the first rank of each value
    for begin in begins[1 :: max(begins.size // 25, 1)]:
        for rank in {int(begin), min(int(begin) + 1, values.size - 1), int(begin) - 1}:
            found = plan.select(values, rank)[0]
            assert found == np.sort(sizes)[rank] and plan.below[0] == np.count_nonzero(sizes < found)


# The approximate one


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["normal", "uniform", "descending", "all magnitudes"])
def test_approximate_threshold_is_close_in_rank(backend, dtype, kind):
    n = 150_001
    values = numbers(kind, n, dtype)
    for k in (0, 1, 1000, n // 3, n - 1000):
        t = threshold(backend.move(values), k, exact=False)
        dropped = np.count_nonzero(magnitudes(values) < t)
        # parts of ordered values have nothing in common with the whole, and the median of their thresholds little
        if not (kind == "descending" and backend.name == "cpu"):
            assert abs(dropped - k) <= n / 80, k


def test_approximate_threshold_is_not_the_exact_one(backend):
    values = backend.move(numbers("normal", 150_001))
    assert threshold(values, 50_000, exact=False) != threshold(values, 50_000)


def test_approximate_threshold_is_the_same_in_every_run(backend):
    values = backend.move(numbers("normal", 150_001))
    assert len({float(threshold(values, 50_000, exact=False)) for _ in range(5)}) == 1


@pytest.mark.parametrize("kind", ["seven values", "all equal"])
def test_approximate_is_exact_where_values_are_few(backend, kind):
    values = numbers(kind, 150_001)
    for k in (0, 1, 70_000, 150_000):
        assert threshold(backend.move(values), k, exact=False) == reference.selection.select(values, k)[0]


def test_approximate_on_the_cpu_is_the_median_of_thresholds():
    values = numbers("normal", 123_457)
    for k in (0, 17, 60_000, 123_456):
        plan = cpu.selection.Selection(values.size, values.dtype, exact=False)
        got = plan.select(values, k)[0], plan.below[0]
        assert got == reference.selection.median_of_thresholds(values, k, cpu_selection.SUBSETS)


def test_results_on_the_cpu_do_not_depend_on_the_number_of_threads():
    values = numbers("normal", 500_003)
    found = set()
    for count in (1, 2, 5):
        set_num_threads(count)
        found.add((threshold(values, 200_000), threshold(values, 200_000, exact=False)))
    assert len(found) == 1


# Bad input


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [3, 5000, 130_003])
def test_nan_is_refused_with_its_place(backend, n, dtype, exact):
    for first in (0, n // 2, n - 1):
        values = numbers("normal", n, dtype)
        values[n - 1] = values[first] = np.nan
        if values.dtype.kind == "c":
            values[first] = complex(np.inf, np.nan)
        for k in (0, n // 2, n):
            with pytest.raises(MatrixError, match=rf"values\[{first}\] is NaN") as error:
                threshold(backend.move(values), k, exact)
        one_line(error)


@pytest.mark.parametrize("method", ["sampleselect", "quickselect"])
def test_nan_of_either_sign_is_refused(backend, method):
    for n in (100, 20_000):
        values = numbers("normal", n)
        values[77] = -np.float64(np.nan)
        values[78:] = np.inf
        for k in (1, n // 2, n):
            with pytest.raises(MatrixError, match=r"values\[77\] is NaN"):
                kth_smallest(backend.move(values), k, method=method)


@pytest.mark.parametrize("k", [-1, 6, 2.0, "3", None, True])
def test_k_out_of_range_is_refused(backend, k):
    values = backend.move(np.arange(5.0))
    with refused(ParameterError, match="an integer from 0 to 5"):
        threshold(values, k)
    with pytest.raises(ParameterError, match="an integer from 1 to 5"):
        kth_smallest(values, k)


def test_k_zero_is_no_kth(backend):
    with pytest.raises(ParameterError, match="from 1 to 3"):
        kth_smallest(backend.move(np.arange(3.0)), 0)


def test_what_is_no_vector_of_numbers_is_refused(backend):
    with pytest.raises(ParameterError, match="one dimension"):
        threshold(backend.move(np.ones((2, 3))), 1)
    with pytest.raises(ParameterError, match=r"int64.*astype"):
        threshold(backend.move(np.arange(3)), 1)
    with pytest.raises(ParameterError, match="no order"):
        kth_smallest(backend.move(np.ones(3, complex)), 1)


def test_parameters_without_meaning_are_refused(backend):
    values = backend.move(np.ones(3))
    with pytest.raises(ParameterError, match="method='bogo'"):
        threshold(values, 1, method="bogo")
    with pytest.raises(ParameterError, match="exact=False"):
        threshold(values, 1, exact=False, method="quickselect")
    Selection = kernels_for(values).selection.Selection
    with pytest.raises(ParameterError, match="order='size'"):
        Selection(3, "float64", order="size")
    with pytest.raises(ParameterError, match="n_max=-1"):
        Selection(-1, "float64")
    plan = Selection(3, "float64")
    with pytest.raises(ParameterError, match="up to 3 values"):
        plan.select(backend.move(np.ones(4)), 1)
    with pytest.raises(ParameterError, match="float32"):
        plan.select(backend.move(np.ones(3, "float32")), 1)
    with pytest.raises(ParameterError, match="contiguous"):
        plan.select(backend.move(np.ones(6))[::2], 1)
    for arguments in ({}, {"rank": 1, "keep": 1}):
        with pytest.raises(ParameterError, match="either rank or keep"):
            plan.select(values, **arguments)
    with pytest.raises(ParameterError, match="count=4"):
        plan.select(values, 1, count=4)


# Plans


@pytest.mark.parametrize("exact", [True, False])
def test_a_plan_forgets_what_it_was_asked_before(backend, exact):
    xp = backend.xp
    plan = kernels_for(xp.zeros(1)).selection.Selection(40_000, "float64", exact=exact)
    fresh = lambda values, rank: (  # noqa: E731
        kernels_for(values).selection.Selection(values.size, "float64", exact=exact).select(values, rank)[0]
    )
    for n, kind, rank in (
        (40_000, "normal", 100),
        (5, "uniform", 2),
        (30_000, "seven values", 15_000),
        (9000, "normal", 0),
    ):
        values = backend.move(numbers(kind, n))
        assert plan.select(values, rank)[0] == fresh(values, rank)
        plan.check()
        bad = backend.move(np.full(n, np.nan))
        plan.select(bad, rank)
        with pytest.raises(MatrixError, match=r"values\[0\]"):
            plan.check()


@pytest.mark.parametrize("n", [900, 20_000])
@pytest.mark.parametrize("exact", [True, False])
def test_count_limits_what_takes_part(backend, n, exact):
    values = numbers("normal", n)
    values[n // 2 :] = np.nan
    moved = backend.move(values)
    plan = kernels_for(moved).selection.Selection(n, "float64", exact=exact)
    cut = backend.move(values[: n // 2])
    want = kernels_for(moved).selection.Selection(n // 2, "float64", exact=exact).select(cut, 123)[0]
    for count in (n // 2, *(backend.move(np.array([n // 2], index)) for index in ("int32", "int64"))):
        assert plan.select(moved, 123, count=count)[0] == want
        plan.check()


@pytest.mark.parametrize("n", [900, 20_000])
def test_keep_leaves_as_many(backend, n):
    values = backend.move(numbers("normal", n))
    plan = kernels_for(values).selection.Selection(n, "float64")
    for keep in (0, 1, n // 4, n, n + 7):
        for given_as in (keep, backend.move(np.array([keep], "int32")), backend.move(np.array([keep], "int64"))):
            plan.select(values, keep=given_as)
            plan.check()
            assert n - int(plan.below[0]) == min(keep, n)


def test_rank_may_be_an_array_of_one(backend):
    values = backend.move(numbers("normal", 9000))
    plan = kernels_for(values).selection.Selection(9000, "float64")
    want = plan.select(values, 4321)[0].copy()
    for index in ("int32", "int64"):
        assert plan.select(values, backend.move(np.array([4321], index)))[0] == want
    with pytest.raises(ParameterError, match="rank"):
        plan.select(values, backend.move(np.array([4321.0])))


def test_values_may_begin_anywhere_in_memory(backend):
    for dtype in DTYPES:
        values = numbers("normal", 40_003, dtype)
        moved = backend.move(values)
        for start in (1, 2, 3):
            want, _ = reference.selection.select(magnitudes(values[start:]), 20_000)
            assert same(threshold(moved[start:], 20_000), want, dtype)
            assert kth_smallest(moved.real[start:].copy(), 7) == np.sort(values.real[start:])[6]


def test_a_sample_that_leads_astray_costs_time_only(monkeypatch):
    values = numbers("normal", 300_000)
    for place in (np.argmin(values), np.argmax(values)):
        monkeypatch.setattr(cpu_selection, "_sample_places", lambda n, place=place: np.full(1000, place))
        assert threshold(values, 150_000) == reference.selection.select(values, 150_000)[0]
        assert kth_smallest(values, 150_000) == np.sort(values)[149_999]
        values[5] = np.nan
        with pytest.raises(MatrixError, match=r"values\[5\]"):
            kth_smallest(values, 150_000)
        values[5] = 0.0


def test_method_on_the_cpu_has_its_effect(calls_of):
    passes = calls_of(cpu.selection.Selection, "_count")
    values = numbers("normal", 300_000)
    threshold(values, 1000, method="quickselect")
    assert not passes
    threshold(values, 1000, method="sampleselect")
    assert passes


def test_several_threads_may_search_at_once():
    values = numbers("normal", 400_000)
    want = [reference.selection.select(values, 1000 * t)[0] for t in range(6)]
    assert run_at_once(lambda t: threshold(values, 1000 * t)) == want


# On the GPU only


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["normal", "seven values", "close together", "half zero"])
@pytest.mark.parametrize("counting", COUNTINGS)
def test_every_counting_gives_the_same(cuda, counting, kind):
    import cupy

    values = numbers(kind, 60_001)
    moved = cupy.asarray(values)
    want, below = reference.selection.select(values, 33_333)
    approximate = cuda.selection.Selection(60_001, "float64", exact=False).select(moved, 33_333)[0]
    plan = cuda.selection.Selection(60_001, "float64", counting=counting)
    assert plan.select(moved, 33_333)[0] == want and plan.below[0] == below
    assert (
        cuda.selection.Selection(60_001, "float64", exact=False, counting=counting).select(moved, 33_333)[0]
        == approximate
    )
    if counting != "lanes":
        plan = cuda.selection.Selection(60_001, "float64", method="quickselect", counting=counting)
        assert plan.select(moved, 33_333)[0] == want and plan.below[0] == below


@pytest.mark.gpu
def test_counting_and_method_choose_the_kernels(cuda, calls_of):
    import cupy

    from finelu.kernels.cuda import selection

    asked = calls_of(selection, "kernel")
    values = cupy.asarray(numbers("normal", 20_001))
    for counting in COUNTINGS[1:]:
        for method, function in (("sampleselect", "count_buckets"), ("quickselect", "partition")):
            asked.clear()
            cuda.selection.Selection(20_001, "float64", method=method, counting=counting).select(values, 5)
            assert {key[4] for key in asked if key[1] == function} == {counting.upper()}
    with pytest.raises(ParameterError, match="quickselect offers shared"):
        cuda.selection.Selection(9, "float64", method="quickselect", counting="lanes")


@pytest.mark.gpu
@pytest.mark.parametrize("room", [0, 100, 5000])
def test_a_bucket_without_room_is_searched_in_place(cuda, room):
    import cupy

    values = numbers("normal", 200_000)
    plan = cuda.selection.Selection(200_000, "float64", room=room)
    for rank in (0, 1000, 150_000):
        assert plan.select(cupy.asarray(values), rank)[0] == reference.selection.select(values, rank)[0]
        plan.check()


@pytest.mark.gpu
def test_numbers_on_the_device_that_are_out_of_range_are_reported(cuda):
    import cupy

    for n in (900, 20_000):
        values = cupy.asarray(numbers("normal", n))
        for exact in (True, False):
            plan = cuda.selection.Selection(n, "float64", exact=exact)
            for arguments, what in (
                ({"rank": 3, "count": cupy.asarray([n + 1])}, "count"),
                ({"rank": 3, "count": cupy.asarray([-1])}, "count"),
                ({"rank": cupy.asarray([n + 1])}, "rank"),
                ({"rank": cupy.asarray([-1])}, "rank"),
                ({"keep": cupy.asarray([-1])}, "rank or keep"),
            ):
                assert not np.isnan(float(plan.select(values, **arguments)[0]))
                with pytest.raises(ParameterError, match=what):
                    plan.check()
            plan.select(values, 3)
            plan.check()


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["normal", "seven values", "close together", "all magnitudes", "descending"])
def test_more_values_than_a_grid_has_threads(cuda, kind, dtype):
    """Every block has several tiles, and the search two levels."""
    import cupy

    n = 5_000_011
    values = numbers(kind, n, dtype)
    moved = cupy.asarray(values)
    sizes = np.sort(magnitudes(values))
    for method in ("sampleselect", "quickselect"):
        plan = cuda.selection.Selection(n, dtype, method=method)
        for rank in (0, 7, n // 2, n - 1):
            assert same(float(plan.select(moved, rank)[0]), sizes[rank], dtype), (method, rank)
    plan = cuda.selection.Selection(n, dtype, exact=False)
    for rank in (0, 7, n // 2, n - 1):
        found = plan.select(moved, rank)[0].item()
        reached = np.searchsorted(sizes, found, side="left"), np.searchsorted(sizes, found, side="right")
        assert reached[0] - n / 80 <= rank <= reached[1] + n / 80


@pytest.mark.gpu
@pytest.mark.parametrize("arguments", [{}, {"exact": False}, {"method": "quickselect"}], ids=str)
def test_select_never_waits_for_the_host(cuda, arguments):
    """The search can be captured in a CUDA graph, which a wait would break, and replayed on other values."""
    import cupy

    n = 50_000
    values, count = cupy.asarray(numbers("normal", n)), cupy.asarray([n])
    plan = cuda.selection.Selection(n, "float64", **arguments)
    plan.select(values, keep=20_000, count=count)  # compiles
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        plan.select(values, keep=20_000, count=count)
        graph = stream.end_capture()
        for seed, m in ((1, 50_000), (2, 30_001), (3, 20_000), (4, 3)):
            values[:] = cupy.asarray(numbers("normal", n, seed=seed))
            count[:] = m
            graph.launch(stream=stream)
            stream.synchronize()
            kept = m - int(plan.below[0])
            assert abs(kept - min(m, 20_000)) <= (0 if plan.exact else m / 80)


# The benchmark


def test_benchmark_measures_checks_and_writes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2]))
    from benchmarks.claims import selection as bench
    from benchmarks.harness.record import Run, page_of

    assert (
        bench.main(["--cpu", "--exponents", "10,12", "--threads", "1,2", "--out", str(tmp_path), "--machine", "here"])
        == 0
    )
    (path,) = tmp_path.glob("selection-cpu-here-*.json.gz")
    run = Run.load(path)
    assert len(run.records) == 2 * len(bench.DTYPES) * len(bench.KINDS) * 5
    assert all(r.numeric_ms > 0 and (r.error == 0 or r.variant == "approximate") for r in run.records)
    text = page_of(path).read_text()
    assert "normal, float32: ms" in text and "| finelu exact, 2 threads" in text


def test_benchmark_sees_a_wrong_rank(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2]))
    from benchmarks.claims.selection import rank_error

    x = np.array([1.0, 2.0, -2.0, 3.0, 5.0])
    assert [rank_error(np, x, 2.0, rank) * 5 for rank in range(5)] == [1, 0, 0, 1, 2]
