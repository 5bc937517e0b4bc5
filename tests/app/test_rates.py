"""`finelu calibrate`: what it measures, where that is kept, and what `solve` makes of it."""

import json
import os
import warnings
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
from checks import without_gpu

import finelu as fl
from finelu import gallery
from finelu.auto import calibrate, cost, monitor, rates
from finelu.auto.ladder import Ladder
from finelu.cli import main
from finelu.ordering import Fill


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FINELU_RATES", str(tmp_path / "rates"))
    return tmp_path / "rates"


def test_rates_are_kept_for_later_processes_and_forgotten(folder):
    assert rates.current() is rates.SHIPPED and rates.forget() is None
    found = replace(rates.SHIPPED, cg=1e-7, feral_row=2.5e-6)
    file = rates.keep(found)
    assert file.parent == folder and os.listdir(folder) == [file.name]
    assert rates.current() == found and found.of("feral") == (2.5e-6, *rates.SHIPPED.of("feral")[1:])
    assert rates.forget() == file and rates.current() is rates.SHIPPED


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        "{}",
        json.dumps(asdict(rates.SHIPPED) | {"cg": 0.0}),
        json.dumps(asdict(rates.SHIPPED) | {"cg": "1"}),
        json.dumps(asdict(rates.SHIPPED) | {"cg": True}),
        json.dumps(asdict(rates.SHIPPED) | {"more": 1.0}),
        json.dumps(asdict(rates.SHIPPED) | {"cg": 1.0}).replace("1.0", "NaN", 1),
    ],
)
def test_a_damaged_file_is_named_and_not_taken(folder, text):
    file = rates.keep(rates.SHIPPED)
    file.write_text(text)
    with pytest.warns(UserWarning, match="calibrate --reset") as warned:
        assert rates.current() is rates.SHIPPED
    assert str(file) in str(warned[0].message) and "\n" not in str(warned[0].message)


def test_machines_have_files_of_their_own_and_need_no_home(folder, meanwhile, monkeypatch):
    here = rates.kept_in()
    meanwhile(rates, processor=lambda: "Another (R) CPU @ 1 GHz")
    assert rates.kept_in() != here and "another-r-cpu-1-ghz" in rates.kept_in().name
    monkeypatch.delenv("FINELU_RATES")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def homeless():
        raise RuntimeError("no home")

    meanwhile(rates.Path, home=homeless)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rates.current() is rates.SHIPPED


def test_solve_expects_what_was_measured(meanwhile):
    A = fl.as_csr(gallery.poisson5(60))
    slow = replace(rates.SHIPPED, superlu_entry=1.0, analysis=1.0, threshold=1.0, multilevel=2.0)
    before = Ladder(A, 1e-8).costs
    before.count_fill()
    assert before.seconds("direct") < 1
    meanwhile(cost, RATES=slow)
    costs = Ladder(A, 1e-8).costs
    assert costs.analysis_seconds == pytest.approx(A.nnz + slow.analysis_row * A.n)
    costs.count_fill()
    assert costs.seconds("direct") == pytest.approx(costs.fill.nnz, rel=1e-3)
    assert (costs.seconds("threshold"), costs.seconds("multilevel")) == (A.nnz, 2 * A.nnz)
    assert monitor.better(costs, ["threshold", "multilevel"], 1e9, 1.6 * A.nnz) == "threshold"
    other_signs = Ladder(fl.as_csr(abs(gallery.poisson5(60))), 1e-8).costs
    assert other_signs.seconds("threshold") == cost.BY_ICT * A.nnz


def test_what_is_measured_is_the_time_of_what_it_is_for(meanwhile):
    """With a clock that advances by one second a look, each run takes one second."""
    ticks = iter(np.arange(1e6))
    A, seen = gallery.poisson5(30), []
    meanwhile(calibrate, perf_counter=lambda: float(next(ticks)), RUNS=1)
    meanwhile(calibrate.gallery, problem=lambda name: A)
    found = calibrate.calibrate(lambda *given: seen.append(given))
    for name in ("quick", "columnwise", "threshold", "multilevel"):
        assert getattr(found, name) == pytest.approx(1 / A.nnz)
    assert found.parts == found.cg and found.parts_setup == pytest.approx(found.cg * calibrate.STEPS)
    assert found.overhead == 1 / calibrate.STEPS and found.cg == 0.01 * rates.SHIPPED.cg  # nothing is left for entries
    factor = found.analysis / rates.SHIPPED.analysis
    assert factor * (rates.SHIPPED.analysis_row * A.shape[0] + rates.SHIPPED.analysis * A.nnz) == pytest.approx(1)
    fill = fl.ordering.with_little_fill(A, "amd")[1]
    factor = found.superlu_row / rates.SHIPPED.superlu_row  # of light factors, which have one for all
    assert factor * rates.SHIPPED.of_library("superlu", A.shape[0], A.nnz, fill, half=False) == pytest.approx(1)
    assert found.superlu_flop >= 0.1 * rates.SHIPPED.superlu_flop
    assert [(done, of) for _, done, of in seen] == [(k, len(seen)) for k in range(len(seen))]


@pytest.fixture
def on_gpu(folder, meanwhile):
    """As if there were a GPU, of this name."""
    meanwhile(rates, gpu=lambda: "NVIDIA X100 (80 GB)")
    rates.current_on_gpu.cache_clear()
    yield
    rates.current_on_gpu.cache_clear()


def test_rates_of_a_gpu_have_a_file_of_their_own(folder, on_gpu):
    found = replace(rates.SHIPPED_ON_GPU, cudss_row=1e-6)
    file = rates.keep(found)
    assert file.name == "rates-nvidia-x100-80-gb.json" and file != rates.kept_in()
    assert rates.current_on_gpu() == found and rates.current() is rates.SHIPPED
    rates.current_on_gpu.cache_clear()
    file.write_text(json.dumps(asdict(rates.SHIPPED)))  # those of a processor
    with pytest.warns(UserWarning, match="calibrate --device cuda --reset"):
        assert rates.current_on_gpu() is rates.SHIPPED_ON_GPU
    assert rates.forget(rates.SHIPPED_ON_GPU) == file and rates.forget(rates.SHIPPED_ON_GPU) is None


def test_solve_expects_what_was_measured_on_a_gpu(on_gpu):
    rates.keep(replace(rates.SHIPPED_ON_GPU, threshold=1.0, threshold_overhead=3.0, cg=2.0, overhead=0.5))
    A = fl.as_csr(gallery.poisson5(60))
    host = Ladder(A, 1e-8).costs
    there = cost.Costs(A, replace(host.traits, gpu=True), host.rungs, None, np.inf)
    assert there.seconds("threshold") == A.nnz + 3 and there.seconds("multilevel") == host.seconds("multilevel")
    assert there.of_iteration("cg") == 2.0 * A.nnz + 0.5
    assert host.of_iteration("cg") == rates.SHIPPED.cg * A.nnz + rates.SHIPPED.overhead
    assert host.of_iteration("gmres") == host.of_iteration("refinement") == host.of_iteration("minres")
    assert host.of_iteration("bicg") == rates.SHIPPED.gmres * 2 * A.nnz + rates.SHIPPED.overhead  # two products
    assert host.of_iteration("cg", by_parts=True) == rates.SHIPPED.parts * A.nnz + rates.SHIPPED.overhead
    of_parts = rates.SHIPPED_ON_GPU.parts * A.nnz + rates.SHIPPED_ON_GPU.parts_overhead
    assert there.of_iteration("cg", by_parts=True) == of_parts  # these have no levels
    assert there.of_iteration("bicgstab", by_parts=True) == 2 * of_parts
    chains = cost.Costs(A, replace(host.traits, gpu=True, levels=3 * cost.LEVELS), host.rungs, None, np.inf)
    assert chains.of_iteration("cg") == 2.0 * A.nnz + 1.5  # a GPU follows levels one by one
    assert chains.of_iteration("bicgstab") - there.of_iteration("bicgstab") == pytest.approx(2 * 2 * 0.5)
    assert chains.seconds("threshold") == A.nnz + 9
    before = there.counting()
    there.order()
    assert there.counting() == before  # whether rows are to be matched is not looked at there
    of_known = {"triangular": {"lower": {"levels": None}, "upper": {"levels": 4 * cost.LEVELS}}}
    F = SimpleNamespace(report=SimpleNamespace(**of_known))
    assert there.levels_of(F) == 4 * cost.LEVELS and there.levels_of(None) is None
    assert there.levels_of(SimpleNamespace(report=SimpleNamespace())) is None  # of other factors
    assert there.of_iteration("cg", levels=there.levels_of(F)) == 2.0 * A.nnz + 2.0
    assert host.of_iteration("cg", 3 * A.nnz) - host.of_iteration("cg") == pytest.approx(rates.SHIPPED.cg * A.nnz)


def test_pardiso_is_expected_to_take_longer_where_it_matches_rows():
    of = {}
    for problem in ("poisson5:30", "stokes:20"):
        costs = Ladder(fl.as_csr(gallery.problem(problem), diagonal=False), 1e-8).costs
        costs.analysis = SimpleNamespace(library=SimpleNamespace(name="pardiso", symmetry="hermitian"))
        fill = Fill(10**6, 1e9)
        of[problem] = costs._of(fill) / costs.of_library(fill, "pardiso", half=True)
        costs.analysis = SimpleNamespace(library=SimpleNamespace(name="feral", symmetry="hermitian"))
        assert costs._of(fill) == costs.of_library(fill, "feral", half=True)
    assert of == {"poisson5:30": 1.0, "stokes:20": cost.MATCHED}


@pytest.mark.parametrize(
    ("problem", "there"), [("poisson5:200", True), ("convection_diffusion:32", True), ("stokes:100", False)]
)
def test_of_multilevel_factors_that_a_gpu_makes_it_expects_what_that_takes(on_gpu, problem, there):
    rates.keep(replace(rates.SHIPPED_ON_GPU, multilevel=1.0, multilevel_overhead=3.0))
    A = fl.as_csr(gallery.problem(problem), diagonal=False)
    host = Ladder(A, 1e-8).costs
    costs = cost.Costs(A, replace(host.traits, gpu=True), host.rungs, None, np.inf)
    assert costs.seconds("multilevel") == (A.nnz + 3 if there else host.seconds("multilevel"))


def test_a_line_goes_through_two_systems():
    assert calibrate._line((10, 3.0), (110, 5.0)) == pytest.approx((0.02, 2.8))
    assert min(calibrate._line((10, 3.0), (110, 3.0))) > 0 and min(calibrate._line((10, 1e-3), (110, 5.0))) > 0


def test_without_a_gpu_there_is_a_line_and_nothing_is_kept(folder, capsys):
    if not without_gpu():
        pytest.skip("there is one")
    assert main(["calibrate", "--device", "cuda"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert main(["calibrate", "--device", "cudda"]) == 2
    assert "cuda" in capsys.readouterr().err and not folder.exists()


@pytest.mark.gpu
@pytest.mark.skipif(bool(without_gpu()), reason=without_gpu())
def test_a_gpu_is_measured(folder, capsys):
    assert main(["calibrate", "--device", "cuda", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(0 < rate < 10 for rate in found["rates"].values())
    rates.current_on_gpu.cache_clear()
    assert asdict(rates.current_on_gpu()) == found["rates"]
    rates.current_on_gpu.cache_clear()


def test_the_command_measures_keeps_shows_and_resets(folder, meanwhile, capsys):
    found = replace(rates.SHIPPED, cg=8e-9)
    meanwhile(calibrate, calibrate=lambda tell: found)
    assert main(["calibrate"]) == 0
    out = capsys.readouterr().out
    assert (
        f"cg                  8.00e-09    {8e-9 / rates.SHIPPED.cg:.2f}" in out
        and str(rates.kept_in()) in out
        and rates.current() == found
    )
    assert main(["calibrate", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": str(rates.kept_in()), "rates": asdict(found)}
    assert main(["calibrate", "--reset"]) == 0 and "is gone" in capsys.readouterr().out
    assert main(["calibrate", "--reset"]) == 0 and "no rates were kept" in capsys.readouterr().out
    folder.rmdir()
    folder.write_text("a file")
    assert main(["calibrate"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
