"""The sweep of ceilings, walked with a machine whose speed the tests decide; then for real, small."""

import csv
from dataclasses import replace

import numpy as np
import pytest

import tflops_sweep
from bench import cli, run
from bench.frameworks import on_torch
from bench.rows import columns, peaks, results
from bench.settings import SettingError, read_settings
from bench.timing.measure import MeasurementError
from bench.work import operators

RATES = {"matmul": {32: 0.1, 64: 0.4, 128: 0.3, 512: 0.35}, "conv1x1": 0.2, "conv3x3": 0.25}


@pytest.fixture
def sweep(monkeypatch, tmp_path, capsys):
    """Runs make tflops on a machine of these TFLOP/s; gives (status, out, err, rows, calls)."""

    def call(rates=RATES, fails=(), again=1.0, interrupted=None, **environ):
        calls = []

        def measure_quantity(bench, workload, phase, scope, progress):
            settings = bench.settings
            size = workload.columns.get("matrix_size", "")
            calls.append((settings.precision, workload.model, size, settings.seed))
            if settings.precision in fails:
                raise MeasurementError("unsupported", f"no {settings.precision} here")
            if workload.name == "bandwidth":
                return [{"throughput": 40.0, "flags": "", "tflops": None}]
            rate = rates[workload.model]
            if isinstance(rate, dict):
                rate = rate[int(size.split("x")[0])] * (again if settings.seed else 1)
            status = "interrupted" if size == interrupted else "ok"
            return [{"tflops": rate, "flags": "", "throughput": rate, "step_seconds_median": 1.0, "status": status}]

        monkeypatch.setattr(run, "measure_quantity", measure_quantity)
        for name, value in ({"SIZES": "32,64,128", "PRECISION": "float32", "MACHINE": "m"} | environ).items():
            monkeypatch.setenv(name, value)
        status = cli.run_script(lambda: run.run_child("tflops", tflops_sweep.first_size, tflops_sweep.run_sweep))
        said = capsys.readouterr()
        path = tmp_path / "results" / "m.csv"
        return status, said.out, said.err, results.read(path) if path.exists() else [], calls

    return call


def test_the_best_size_is_measured_again_and_that_is_the_peak(sweep):
    status, out, _, rows, calls = sweep(again=0.9)
    assert status == 0
    assert calls[:5] == [
        ("float32", "matmul", "32x32x32", 0),
        ("float32", "matmul", "64x64x64", 0),
        ("float32", "matmul", "128x128x128", 0),
        ("float32", "matmul", "64x64x64", 1),
        ("float32", "conv1x1", "64x64x64", 1),
    ]
    (peak,) = [row for row in rows if row["model"] == "matmul-peak"]
    assert (peak["workload"], peak["matrix_size"], peak["tflops"]) == ("matmul", "64x64x64", "0.36")
    assert peak["note"] == "the best of 3 sizes, measured again"
    assert [line.split() for line in out.splitlines() if "64x64x64" in line] == [["64x64x64", "0.4*"]]
    assert ["peak", "0.36"] in [line.split() for line in out.splitlines()]


def test_a_faster_convolution_is_the_peak_and_says_so(sweep):
    *_, rows, _ = sweep(RATES | {"conv1x1": 0.9})
    (peak,) = [row for row in rows if row["model"] == "matmul-peak"]
    assert (peak["workload"], peak["tflops"], peak["memory_format"]) == ("matmul", "0.9", "channels_last")
    assert peak["note"] == "a 1x1 convolution in channels_last, faster than the matmul (0.4 TFLOP/s)"


def test_a_precision_that_is_not_there_is_one_row_and_the_others_run(sweep):
    status, out, _, rows, _ = sweep(fails=["tf32"], PRECISION="tf32,float32")
    assert status == 0
    assert [(row["status"], row["note"]) for row in rows if row["precision"] == "tf32"] == [
        ("unsupported", "no tf32 here")
    ]
    assert "tf32 matmul: unsupported: no tf32 here" in out
    assert any(row["model"] == "matmul-peak" for row in rows)


def test_where_nothing_works_it_has_failed(sweep):
    assert sweep(fails=["float32"])[0] == 1


def test_what_takes_too_long_is_left_out_with_a_line(sweep):
    rates = RATES | {"matmul": {32: 1e-6, 512: 1e-6, 8192: 1.0}}
    _, _, err, rows, calls = sweep(rates, SIZES="32,8192")
    assert "float32 matmul 8192x8192x8192 is left out: one step would take about 1.1e+06 s: a longer MAX_SECONDS" in err
    assert "8192x8192x8192" not in {row["matrix_size"] for row in rows}
    assert "conv3x3" not in {model for _, model, *_ in calls}


def test_a_tiny_product_says_nothing_about_a_large_one(sweep):
    rates = RATES | {"matmul": {32: 1e-6, 512: 1.0, 8192: 2.0}}
    *_, rows, calls = sweep(rates, SIZES="32,8192", MAX_SECONDS="3")
    assert [row["matrix_size"] for row in rows if row["model"] == "matmul"] == ["32x32x32", "8192x8192x8192"]
    assert "conv3x3" in {model for _, model, *_ in calls}


def test_ctrl_c_keeps_the_row_and_ends_the_sweep(sweep):
    status, out, _, rows, calls = sweep(interrupted="64x64x64")
    assert status == 130
    assert [row["status"] for row in rows] == ["ok", "interrupted"]
    assert calls[-1][2] == "64x64x64"
    assert "32x32x32" in out


def test_ctrl_c_while_the_peak_is_measured_ends_the_sweep(sweep):
    status, _, _, rows, calls = sweep({"matmul": {32: 0.1}, "conv1x1": 0.9}, interrupted="32x32x32", SIZES="32")
    assert (status, rows[-1]["status"]) == (130, "interrupted")
    assert [call[1] for call in calls] == ["matmul"]


def test_before_a_large_size_a_small_one_is_looked_at(sweep):
    rates = RATES | {"matmul": {512: 1e-6, 4096: 1.0}}
    _, _, err, rows, calls = sweep(rates, SIZES="4096")
    assert calls[0][2] == "512x512x512"
    assert "4096x4096x4096 is left out" in err
    assert not [row for row in rows if row["workload"] == "matmul"]


def test_what_cannot_fit_is_left_out_with_a_line(sweep):
    *_, err, rows, _ = sweep(RATES | {"matmul": {512: 1.0, 32: 1.0}}, SIZES="32,900000")
    assert "900000x900000x900000 is left out: it takes" in err
    assert len([row for row in rows if row["model"] == "matmul"]) == 1


@pytest.mark.parametrize("sizes", ["0", "abc", "1e6", "8x8", "8x8x0", "-4", "32,"])
def test_wrong_sizes_are_one_line(sweep, sizes):
    status, out, err, rows, _ = sweep(SIZES=sizes)
    assert (status, out, rows, len(err.splitlines())) == (2, "", [], 1)
    assert err.startswith(f"SIZES={sizes!r} ")


def test_the_precisions_of_models_are_refused(sweep):
    status, _, err, rows, _ = sweep(PRECISION="mixed_float16")
    assert (status, rows) == (2, [])
    assert err == "PRECISION='mixed_float16' is for models: name the 16-bit precision itself\n"


def test_triples_are_taken():
    assert read_settings("tflops", {"SIZES": "64, 8X16x32"}).sizes == ((64, 64, 64), (8, 16, 32))
    assert operators.matmul((8, 16, 32)).flops_per_item == 2 * 8 * 16 * 32
    assert read_settings("tflops", {}).sizes[-1] == (8192, 8192, 8192)


def test_operands_are_bounded_and_take_turns():
    sets = operators.matmul((64, 32, 16)).batches(1, 0)
    assert len(sets) == operators.MAX_SETS
    assert [array.shape for array in sets[0]] == [(64, 16), (16, 32)]
    assert not np.array_equal(sets[0][0], sets[1][0])
    assert 0.9 < np.std(sets[0][0]) < 1.1
    big = operators.convolution_3x3("cpu").batches(1, 0)
    assert len(big) * sum(array.astype(np.float16).nbytes for array in big[0]) >= operators.CACHE_BYTES


# For real, on the CPU


def open_session(workload, precision="float32"):
    settings = read_settings("tflops", {"USE_GPU": "0"})
    return on_torch.open_session(workload, replace(settings, precision=precision), None, "device")


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float64"])
def test_products_and_convolutions_are_right_before_they_are_timed(precision):
    for workload in (operators.matmul((48, 40, 56)), operators.convolution_1x1((48, 40, 56))):
        session = open_session(workload, precision)
        session.step()
        assert session.measured_precision == precision
        assert np.isfinite(session.probe())


def test_the_ancestors_convolution_and_the_bandwidth(monkeypatch):
    monkeypatch.setattr(operators, "COPY_NUMBERS", 2**16)
    works = [operators.bandwidth(*item) for item in operators.BANDWIDTHS.items()]
    for workload in [operators.convolution_3x3("cpu"), *works]:
        session = open_session(workload)
        session.step()
        assert np.isfinite(session.probe())
    gigabytes = 4 * 2**16 / 1e9
    assert [work.items_per_step / gigabytes for work in works] == pytest.approx([2, 3, 3])


@pytest.mark.parametrize("model", ["matmul", "conv1x1", "copy", "add", "multiply-add"])
def test_a_wrong_operator_is_refused(monkeypatch, model):
    monkeypatch.setattr(operators, "COPY_NUMBERS", 2**16)
    right = on_torch.OPERATORS[model]
    monkeypatch.setitem(on_torch.OPERATORS, model, lambda *operands: right(*operands) * 1.01)
    size = (32, 32, 32)
    works = [operators.matmul(size), operators.convolution_1x1(size)]
    works += [operators.bandwidth(*item) for item in operators.BANDWIDTHS.items()]
    with pytest.raises(MeasurementError, match=r"the output differs from float64's by 1\.0e-02"):
        open_session(next(work for work in works if work.model == model))


def test_a_real_sweep_fills_rows(monkeypatch, tmp_path):
    monkeypatch.setattr(operators, "COPY_NUMBERS", 2**20)
    environ = {"SIZES": "32,64x64x128", "PRECISION": "float32,tf32", "MAX_SECONDS": "0.05", "MACHINE": "m"}
    for name, value in (environ | {"USE_GPU": "0"}).items():
        monkeypatch.setenv(name, value)
    assert cli.run_script(lambda: run.run_child("tflops", tflops_sweep.first_size, tflops_sweep.run_sweep)) == 0
    rows = results.read(tmp_path / "results" / "m.csv")
    assert {row["model"] for row in rows if row["status"] == "ok"} >= {"matmul", "conv1x1", "matmul-peak", "copy"}
    (product, *_) = [row for row in rows if row["model"] == "matmul"]
    expected = float(product["throughput"]) * 2 * 32**3 / 1e12
    assert float(product["tflops"]) == pytest.approx(expected, rel=1e-4)
    assert (product["unit"], product["phase"], product["optimizer"], product["batch_size"]) == (
        "matmuls/s",
        "",
        "",
        "",
    )
    assert {row["unit"] for row in rows if row["workload"] == "bandwidth"} == {"GB/s"}


# Peaks


def peak_row(**changes):
    row = dict.fromkeys(columns.COLUMNS, "")
    row |= {"model": "matmul-peak", "status": "ok", "machine": "m", "device": "cuda", "precision": "float16"}
    return row | {"tflops": "100", "framework": "torch"} | changes


def test_the_fraction_is_of_the_best_peak_in_the_same_precision():
    best = peaks.measured_peaks(
        [
            peak_row(),
            peak_row(tflops="400", framework="tensorflow"),
            peak_row(tflops="900", flags="implausible"),
            peak_row(tflops="800", status="interrupted"),
            peak_row(tflops="50", precision="float32"),
            peak_row(tflops="1", device="cpu"),
        ]
    )
    row = {"machine": "m", "device": "cuda", "precision": "mixed_float16", "tflops": 100.0}
    assert peaks.fraction_of_peak(row, best) == 0.25
    assert peaks.fraction_of_peak(row | {"precision": "float32"}, best) == 2.0
    assert peaks.fraction_of_peak(row | {"precision": "bfloat16"}, best) is None
    assert peaks.fraction_of_peak(row | {"machine": "n"}, best) is None
    assert peaks.fraction_of_peak(row | {"tflops": None}, best) is None


def test_frameworks_that_differ_are_told_apart_in_words():
    rows = [peak_row(), peak_row(framework="tensorflow", tflops="220"), peak_row(device="cpu", framework="jax")]
    assert peaks.compare_frameworks(rows, "cuda") == [
        "float16: torch reaches 100 TFLOP/s of the 220 that tensorflow reaches on this machine"
    ]
    assert peaks.compare_frameworks([peak_row(), peak_row(framework="tensorflow", tflops="109")], "cuda") == []


@pytest.mark.parametrize(
    ("device_name", "gpu_cores", "precision", "tflops", "implausible"),
    [
        ("NVIDIA H200", None, "float16", 1200.0, False),
        ("NVIDIA H200", None, "mixed_float16", 1300.0, True),
        ("NVIDIA A100-SXM4-40GB", None, "bfloat16", 410.0, True),
        ("NVIDIA A100-PCIE-40GB", None, "bfloat16", 410.0, True),
        ("NVIDIA H100 NVL", None, "tf32", 650.0, True),
        ("NVIDIA GH200 480GB", None, "float16", 1300.0, True),
        ("NVIDIA GeForce RTX 3090", None, "bfloat16", 76.7, False),  # measured by others
        ("NVIDIA GeForce RTX 3090", None, "bfloat16", 93.0, True),
        ("NVIDIA GeForce RTX 3090", None, "float16", 130.0, False),  # sums in float16 are twice as fast
        ("NVIDIA GeForce RTX 4090", None, "mixed_bfloat16", 220.0, True),
        ("Apple M4 Max", 40, "float32", 20.0, False),
        ("Apple M4 Max", 40, "float32", 25.0, True),
        ("Apple M4 Max", 32, "float32", 25.0, False),  # nobody states its peak
        ("NVIDIA H200", None, "float16", None, False),
    ],
)
def test_more_than_a_chip_can_do_is_implausible(device_name, gpu_cores, precision, tflops, implausible):
    row = {"device": "cuda", "device_name": device_name, "gpu_cores": gpu_cores, "precision": precision}
    assert peaks.is_implausible(row | {"tflops": tflops}) == implausible
    assert not peaks.is_implausible(row | {"tflops": tflops, "device": "cpu"})


def test_no_published_matmul_is_implausible():
    """The peaks and the figures come from different sources."""
    with open("results/published.csv", newline="", encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["tflops"] and row["status"] == "ok"]
    with open(peaks.CHIP_PEAKS, newline="", encoding="utf-8") as lines:
        driver_names = {row["device"]: row["driver_name"] or row["device"] for row in csv.DictReader(lines)}
    known = [
        row | {"device_name": driver_names[row["device_name"]]} for row in rows if row["device_name"] in driver_names
    ]
    keys = {(row["device_name"], row["gpu_cores"], row["precision"]) for row in known} & set(peaks.chip_peaks())
    assert len(keys) >= 15
    assert [row for row in known if peaks.is_implausible(row | {"tflops": float(row["tflops"])})] == []


def test_an_unknown_operator_is_refused_by_name():
    workload = replace(operators.matmul((8, 8, 8)), name="fft", model="fft")
    with pytest.raises(SettingError, match="FRAMEWORK='torch' cannot run fft"):
        open_session(workload)
