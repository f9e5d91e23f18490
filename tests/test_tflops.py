"""The sweep of a machine's limits: on a fake machine whose speed the tests decide, then on this CPU."""

import csv
import re

import pytest

import tflops_sweep
from bench import cli, run
from bench.records import columns, peaks, results
from bench.timing.measure import MeasurementError
from bench.workloads import operators

RATES = {"matmul": {32: 0.1, 64: 0.4, 128: 0.3, 512: 0.35}, "conv1x1": 0.2, "conv3x3": 0.25}


@pytest.fixture
def sweep(monkeypatch, tmp_path, capsys):
    """Run make tflops on a machine of these TFLOP/s; returns (status, out, err, rows, calls)."""
    monkeypatch.setattr(tflops_sweep, "CPU_PEAK_SIDE", 128)

    def call(rates=RATES, fails=None, again=1.0, interrupted=None, **environ):
        calls, fails = [], fails or {}

        def measure_quantity(bench, workload, phase, scope, shows_bar):
            settings = bench.settings
            size = workload.columns.get("matrix_size", "")
            calls.append((settings.precision, workload.model, size, settings.seed))
            for what in (settings.precision, size):
                if what in fails:
                    raise MeasurementError(fails[what], f"no {what} here")
            if workload.name in ("bandwidth", "gemv"):
                return {"throughput": 40.0, "flags": "", "tflops": None}
            rate = rates[workload.model]
            if isinstance(rate, dict):
                rate = rate[int(size.split("x")[0])] * (again if settings.seed else 1)
            status = "interrupted" if size == interrupted else "ok"
            return {"tflops": rate, "flags": "", "throughput": rate, "step_seconds_median": 1.0, "status": status}

        monkeypatch.setattr(run, "measure_quantity", measure_quantity)
        asked = {"SIZES": "32,64,128", "PRECISION": "float32", "OPS": "matmul,convolution,bandwidth", "MACHINE": "m"}
        for name, value in (asked | environ).items():
            monkeypatch.setenv(name, value)
        status = cli.run_script(lambda: run.run_child("tflops", tflops_sweep.first_size, tflops_sweep.run_sweep))
        said = capsys.readouterr()
        path = tmp_path / "results" / "m.csv"
        return status, said.out, said.err, results.read(path) if path.exists() else [], calls

    return call


def test_the_best_size_is_measured_again_and_that_is_the_peak(sweep):
    status, out, _, rows, calls = sweep(again=0.9)
    assert status == 0
    sizes = [("matmul", 32, 0), ("matmul", 64, 0), ("matmul", 128, 0), ("matmul", 64, 1), ("conv1x1", 64, 1)]
    assert calls[:5] == [("float32", model, f"{m}x{m}x{m}", seed) for model, m, seed in sizes]
    (peak,) = [row for row in rows if row["model"] == "matmul-peak"]
    assert (peak["workload"], peak["matrix_size"], peak["tflops"]) == ("matmul", "64x64x64", "0.36")
    assert "3 sizes" in peak["note"]
    lines = [line.split() for line in out.splitlines()]
    assert ["64x64x64", "400*"] in lines
    assert ["peak", "360"] in lines


def test_a_faster_convolution_is_the_peak_and_says_so(sweep):
    *_, rows, _ = sweep(RATES | {"conv1x1": 0.9})
    (peak,) = [row for row in rows if row["model"] == "matmul-peak"]
    assert (peak["workload"], peak["tflops"], peak["memory_format"]) == ("matmul", "0.9", "channels_last")
    assert "1x1 convolution" in peak["note"]
    assert "400 GFLOP/s" in peak["note"]


def test_small_sizes_show_no_peak(sweep):
    _, out, _, rows, calls = sweep(SIZES="32,64")
    assert {row["model"] for row in rows} == {"matmul", "conv3x3", *operators.BANDWIDTHS}
    assert {seed for *_, seed in calls} == {0}
    assert "no peak" in out
    assert "128" in out


@pytest.mark.parametrize(
    ("rates", "unit", "cells"),
    [
        ((3.278e-5, 0.4, 0.3), "GFLOP/s", ["0.03278", "400*", "300"]),
        ((0.0131, 400.0, 1234.0), "TFLOP/s", ["0.0131", "400", "1234*"]),
    ],
)
def test_rates_have_a_readable_unit_and_the_mark_is_explained(sweep, rates, unit, cells):
    _, out, _, _, _ = sweep(RATES | {"matmul": dict(zip((32, 64, 128), rates, strict=True))})
    assert out.startswith(unit)
    assert [line.split()[1] for line in out.splitlines() if line.startswith(("  32x", "  64x", "  128x"))] == cells
    assert "  * " in out


def test_a_precision_that_is_not_there_is_one_row_and_the_others_run(sweep):
    status, out, _, rows, _ = sweep(fails={"tf32": "unsupported"}, PRECISION="tf32,float32")
    refused = [(row["status"], row["note"]) for row in rows if row["precision"] == "tf32"]
    assert (status, refused) == (0, [("unsupported", "no tf32 here")])
    assert "tf32 matmul: unsupported: no tf32 here" in out
    assert any(row["model"] == "matmul-peak" for row in rows)
    assert sweep(fails={"float32": "unsupported"})[0] == 1  # a sweep without a result has failed


@pytest.mark.parametrize(
    ("sizes", "rates", "measured", "skipped", "reason"),
    [
        ("32,8192", {32: 1e-6, 512: 1e-6, 8192: 1.0}, [32], 8192, "MAX_SECONDS"),
        ("4096", {512: 1e-6, 4096: 1.0}, [], 4096, "MAX_SECONDS"),  # a small size is tried first
        ("32,900000", {512: 1.0, 32: 1.0}, [32], 900_000, "GiB"),
        ("32,8192", {32: 1e-6, 512: 1.0, 8192: 2.0}, [32, 8192], None, ""),  # a tiny one does not predict a large one
    ],
)
def test_what_takes_too_long_or_cannot_fit_is_skipped_with_a_line(sweep, sizes, rates, measured, skipped, reason):
    *_, err, rows, calls = sweep(RATES | {"matmul": rates}, SIZES=sizes, MAX_SECONDS="3")
    assert [row["matrix_size"] for row in rows if row["model"] == "matmul"] == [f"{m}x{m}x{m}" for m in measured]
    told = [line for line in err.splitlines() if f"float32 matmul {skipped}x{skipped}x" in line and reason in line]
    assert len(told) == (skipped is not None)
    assert ("conv3x3" in {model for _, model, *_ in calls}) == (reason != "MAX_SECONDS")


@pytest.mark.parametrize(
    ("refused", "sizes"),
    [("wrong_output", ["64x64x64", "128x128x128"]), ("work_skipped", ["64x64x64", "128x128x128"]), ("unsupported", [])],
)
def test_one_size_that_is_refused_does_not_end_a_precision(sweep, refused, sizes):
    _, out, err, rows, _ = sweep(fails={"32x32x32": refused})
    assert [row["matrix_size"] for row in rows if row["model"] == "matmul" and row["status"] == "ok"] == sizes
    assert f"float32 {refused}: no 32x32x32 here" in err
    assert f"float32 matmul: {refused}: no 32x32x32 here" in out
    assert any(row["model"] == "matmul-peak" for row in rows) == bool(sizes)


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


@pytest.mark.parametrize(
    ("name", "value"),
    [*(("SIZES", value) for value in ("0", "abc", "1e6", "8x8", "8x8x0", "-4", "32,")), ("PRECISION", "mixed_float16")],
)
def test_a_wrong_value_is_one_line(sweep, name, value):
    status, out, err, rows, _ = sweep(**{name: value})
    assert (status, out, rows, len(err.splitlines())) == (2, "", [], 1)
    assert err.startswith(f"{name}={value!r} ")


EIGHT = RATES | {"matmul-8bit": 0.9, "attention": 0.1}


def test_8_bits_are_compared_with_bfloat16_of_the_same_size(sweep):
    _, out, _, rows, calls = sweep(EIGHT, OPS="int8")
    assert [(row["model"], row["precision"], row["unit"]) for row in rows] == [
        ("matmul-8bit", "int8", "matmuls/s"),
        ("matmul", "bfloat16", "matmuls/s"),
    ]
    assert "900 GOP/s, 3 times the rate of bfloat16" in out
    assert [call[2] for call in calls] == ["512x512x512", "128x128x128", "128x128x128"]  # the first is not stored
    *_, calls = sweep(EIGHT, OPS="matmul,int8", PRECISION="bfloat16")
    assert sum(call[:3] == ("bfloat16", "matmul", "128x128x128") for call in calls) == 1


def test_what_a_device_lacks_is_one_row_and_the_other_operators_run(sweep):
    fails = dict.fromkeys(("float8_e4m3", "float32"), "unsupported")
    _, out, _, rows, _ = sweep(EIGHT, fails=fails, OPS="float8,int8,gemv,attention")
    refused = [row for row in rows if row["status"] == "unsupported"]
    assert [row["model"] for row in refused] == ["matmul-8bit", "gemv", "attention"]
    assert {row["precision"] for row in rows if row["status"] == "ok"} == {"int8", "bfloat16"}
    assert "float8_e4m3 matmul-8bit: unsupported" in out


def test_attention_is_a_share_of_the_peak_and_stops_before_it_takes_too_long(sweep):
    sweep()
    _, out, err, rows, _ = sweep(EIGHT | {"attention": 0.02}, OPS="attention")
    assert [row["sequence_length"] for row in rows if row["model"] == "attention"] == ["1024", "4096"]
    assert "float32 attention 4096: 20 GFLOP/s, 5 % of the measured peak" in out
    assert "attention 16384 is skipped" in err


def test_decode_shows_each_precision(sweep):
    _, out, _, rows, _ = sweep(OPS="gemv")
    assert [row["precision"] for row in rows] == ["float32", "bfloat16", "int8"]
    assert re.search("int8 gemv .*40 GB/s", out)


def test_an_8_bit_rate_is_no_peak(sweep):
    *_, rows, _ = sweep(EIGHT | {"matmul-8bit": 99.0}, OPS="matmul,int8,float8")
    ((key, peak),) = peaks.measured_peaks(rows).items()
    assert (key[2], peak["tflops"]) == ("float32", "0.4")


# For real, on the CPU


def test_a_real_sweep_fills_rows(monkeypatch, tmp_path):
    monkeypatch.setattr(operators, "COPY_NUMBERS", 2**20)
    monkeypatch.setattr(tflops_sweep, "CPU_PEAK_SIDE", 64)
    monkeypatch.setattr(operators, "GEMV_SIDE", 64)
    monkeypatch.setattr(operators, "ATTENTION_TOKENS", (8,))
    environ = {"SIZES": "32,64x64x128", "PRECISION": "float32,tf32", "MAX_SECONDS": "0.05", "MACHINE": "m"}
    for name, value in (environ | {"USE_GPU": "0"}).items():
        monkeypatch.setenv(name, value)
    assert cli.run_script(lambda: run.run_child("tflops", tflops_sweep.first_size, tflops_sweep.run_sweep)) == 0
    rows = results.read(tmp_path / "results" / "m.csv")
    assert {row["model"] for row in rows if row["status"] == "ok"} >= {"matmul", "conv1x1", "matmul-peak", "copy"}
    (product, *_) = [row for row in rows if row["model"] == "matmul"]
    expected = float(product["throughput"]) * 2 * 32**3 / 1e12
    assert float(product["tflops"]) == pytest.approx(expected, rel=1e-4)
    assert [product[name] for name in ("unit", "phase", "optimizer", "batch_size")] == ["matmuls/s", "", "", ""]
    assert {row["unit"] for row in rows if row["workload"] in ("bandwidth", "gemv")} == {"GB/s"}
    read = [(row["precision"], row["throughput"] == row["bandwidth"]) for row in rows if row["model"] == "gemv"]
    assert read == [("float32", True), ("bfloat16", True), ("int8", True)]
    eight = [(row["precision"], row["measured_precision"]) for row in rows if row["model"] == "matmul-8bit"]
    assert eight == [("int8", "int8"), ("float8_e4m3", "float8_e4m3")]
    assert [row["sequence_length"] for row in rows if row["model"] == "attention"] == ["8"]


# Peaks


def peak_row(**changes):
    row = dict.fromkeys(columns.COLUMNS, "")
    row |= {"model": "matmul-peak", "status": "ok", "machine": "m", "device": "cuda", "precision": "float16"}
    return row | {"tflops": "100", "framework": "torch"} | changes


def test_the_fraction_is_of_the_best_peak_in_the_same_precision():
    better = peak_row(tflops="400", framework="tensorflow")
    unusable = peak_row(tflops="900", flags="implausible"), peak_row(tflops="800", status="interrupted")
    others = peak_row(tflops="50", precision="float32"), peak_row(tflops="1", device="cpu")
    best = peaks.measured_peaks([peak_row(), better, *unusable, *others])
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


A100, RTX_3090 = {"device_name": "NVIDIA A100-SXM4-40GB"}, {"device_name": "NVIDIA GeForce RTX 3090"}
M4_MAX = {"device_name": "Apple M4 Max", "precision": "float32"}


@pytest.mark.parametrize(
    ("cells", "implausible"),
    [
        ({"precision": "float16", "tflops": 1200.0}, False),
        ({"precision": "mixed_float16", "tflops": 1300.0}, True),
        (A100 | {"tflops": 410.0}, True),
        (RTX_3090 | {"tflops": 76.7}, False),  # measured by others
        (RTX_3090 | {"precision": "float16", "tflops": 130.0}, True),  # torch sums float16 in float32: 71
        (M4_MAX | {"gpu_cores": 40, "tflops": 20.0}, False),
        (M4_MAX | {"gpu_cores": 40, "tflops": 25.0}, True),
        (M4_MAX | {"gpu_cores": 32, "tflops": 25.0}, False),  # nobody states its peak
        ({"tflops": None}, False),
        # Winograd counts 2.25 times the multiplications that it does.
        ({"workload": "image", "precision": "float32", "tflops": 2.9 * 67}, False),
        ({"workload": "convolution", "precision": "float32", "tflops": 3.0 * 67}, True),
        ({"workload": "transformer", "precision": "float32", "tflops": 1.4 * 67}, True),
        ({"workload": "image", "tflops": 1.4 * 989}, True),
        (A100 | {"bandwidth": 1.2 * 1555}, False),
        (A100 | {"bandwidth": 1.4 * 1555}, True),
        (A100 | {"bandwidth": None}, False),
        (A100 | {"workload": "bandwidth", "throughput": 1.4 * 1555}, True),
    ],
)
def test_more_than_a_chip_can_do_is_implausible(cells, implausible):
    row = {"device": "cuda", "device_name": "NVIDIA H200", "gpu_cores": None, "precision": "bfloat16"} | cells
    assert peaks.is_implausible(row) == implausible
    assert not peaks.is_implausible(row | {"device": "cpu"})


def test_no_published_matmul_is_implausible():
    """The peaks and the figures come from different sources."""
    with open("results/published.csv", newline="", encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["tflops"] and row["status"] == "ok"]
    with open(peaks.CHIP_PEAKS, newline="", encoding="utf-8") as lines:
        driver_names = {row["device"]: row["driver_name"] or row["device"] for row in csv.DictReader(lines)}
    names = {row["device_name"] for row in rows} & set(driver_names)
    known = [row | {"device_name": driver_names[row["device_name"]]} for row in rows if row["device_name"] in names]
    keys = {(row["device_name"], row["gpu_cores"], row["precision"]) for row in known} & set(peaks.chip_peaks())
    assert len(keys) >= 15
    assert [row for row in known if peaks.is_implausible(row | {"tflops": float(row["tflops"])})] == []
