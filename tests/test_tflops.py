"""The sweep of a machine's limits: on a fake machine whose speed the tests decide, then on this CPU."""

import functools
import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

import tflops_sweep
from bench import cli, run
from bench.frameworks import on_torch
from bench.records import peaks, results
from bench.settings import read_settings
from bench.timing.measure import MeasurementError
from bench.workloads import data, operators
from tests.fakes import Clock, Device

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
    assert "4096 tokens: float32 20 GFLOP/s, 5 % of the measured peak" in out
    assert "attention 16384 is skipped" in err


def test_decode_shows_each_precision(sweep):
    _, out, _, rows, _ = sweep(OPS="gemv")
    assert [row["precision"] for row in rows] == ["float32", "bfloat16", "int8"]
    assert "int8 40 GB/s" in out


def test_an_8_bit_rate_is_no_peak(sweep):
    *_, rows, _ = sweep(EIGHT | {"matmul-8bit": 99.0}, OPS="matmul,int8,float8")
    ((key, peak),) = peaks.measured_peaks(rows).items()
    assert (key[-1], peak["tflops"]) == ("float32", "0.4")


def test_the_power_probe_alternates_and_needs_a_matmul(sweep):
    clock, opened, order = Clock(), [], []

    def open_session(workload, settings, *_):
        zeros = not any(each.any() for each in workload.make_batches(1, 0)[0])
        device = Device(clock, lambda i: order.append(zeros) or (0.010 if zeros else 0.011))
        device.close = lambda: opened.remove(zeros)
        opened.append(zeros)
        return device

    bench = SimpleNamespace(framework=SimpleNamespace(open_session=open_session))
    probed = SimpleNamespace(peak_side=64, settings=read_settings("tflops", {}), bench=bench)
    ratio = tflops_sweep.probe_power(probed, "float32", 2 * 64**3 / 0.010 / 1e12, clock)
    assert ratio == pytest.approx(1.1, rel=0.01)
    assert sum(a != b for a, b in itertools.pairwise(order)) == 2 * tflops_sweep.PROBE_ROUNDS - 1
    assert opened == []
    assert sweep(OPS="power")[0] == 2


@pytest.mark.parametrize(
    ("module", "name"), [(tflops_sweep, "probe_power"), (tflops_sweep.operators, "convolution_1x1")]
)
def test_ctrl_c_after_the_peak_keeps_it(sweep, monkeypatch, module, name):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, name, interrupt)
    status, _, _, rows, _ = sweep(OPS="matmul,power")
    assert (status, rows[-1]["model"]) == (130, "matmul-peak")


def test_a_triple_has_its_flops():
    assert operators.matmul((8, 16, 32)).flops_per_item == 2 * 8 * 16 * 32
    assert read_settings("tflops", {}).sizes[-1] == (8192, 8192, 8192)


def test_operands_are_bounded_and_rotate(monkeypatch):
    sets = operators.matmul((64, 32, 16)).make_batches(1, 0)
    assert len(sets) == operators.MAX_SETS
    assert [array.shape for array in sets[0]] == [(64, 16), (16, 32)]
    assert not np.array_equal(sets[0][0], sets[1][0])
    assert 0.9 < np.std(sets[0][0]) < 1.1
    monkeypatch.setattr(operators, "CACHE_BYTES", 2**22)
    large = operators.matmul((512, 512, 512)).make_batches(1, 0)
    assert sum(array.astype(np.float16).nbytes for arrays in large for array in arrays) == 2**22


# For real, on the CPU


def open_session(workload, precision="float32"):
    settings = replace(read_settings("tflops", {"USE_GPU": "0"}), precision=precision)
    return on_torch.open_session(workload, settings, None, "device")


def off_by_one(a, b):
    return torch._int_mm(a, b.t()) + 1


def of_everything(*operands):
    return functional.scaled_dot_product_attention(*operands)


# Other precisions, and what is measured, are in tests/frameworks/test_contract.py.
@pytest.mark.parametrize(
    ("build", "precision", "wrong"),
    [
        (lambda: operators.matmul((32, 48, 40)), "float32", None),
        (lambda: operators.convolution_1x1((32, 48, 40)), "float32", None),
        (lambda: operators.convolution_3x3("cpu"), "float32", None),
        *((functools.partial(operators.bandwidth, *item), "float32", None) for item in operators.BANDWIDTHS.items()),
        (lambda: operators.matmul_of_bytes("int8", (32, 48, 40)), "int8", off_by_one),
        (
            lambda: operators.matmul_of_bytes("float8_e4m3", (32, 48, 64)),
            "float8_e4m3",
            lambda a, b: 1.03 * (a.float() @ b.float().t()),
        ),
        (lambda: operators.matmul((32, 48, 40), [data.zero_pool]), "float32", lambda a, b: a @ b + 1e-3),
        (lambda: operators.gemv("float32"), "float32", lambda x, w: functional.linear(x, w.flip(1))),
        (lambda: operators.gemv("int8"), "int8", lambda x, w, scales: functional.linear(x, w.to(x.dtype))),
        (lambda: operators.attention(48, "cpu"), "float32", of_everything),
        (lambda: operators.attention(48, "cpu"), "bfloat16", of_everything),
    ],
)
def test_a_wrong_result_of_an_operator_is_refused(monkeypatch, build, precision, wrong):
    for name, value in (("GEMV_SIDE", 64), ("COPY_NUMBERS", 2**16), ("CACHE_BYTES", 1)):  # few and small operands
        monkeypatch.setattr(operators, name, value)
    workload = build()
    session = open_session(workload, precision)
    session.step()
    assert np.isfinite(session.read())
    session.check_last_step()
    right = on_torch.OPERATORS[workload.model]
    monkeypatch.setitem(on_torch.OPERATORS, workload.model, wrong or (lambda *operands: right(*operands) * 1.01))
    with pytest.raises(MeasurementError, match="the output differs") as error:
        open_session(workload, precision)
    assert error.value.status == "wrong_output"
    assert wrong or "float64's by 1.0e-02" in str(error.value)


def test_an_operator_that_a_framework_lacks_is_unsupported(monkeypatch):
    monkeypatch.delitem(on_torch.OPERATORS, "attention")
    with pytest.raises(MeasurementError, match="no attention") as error:
        open_session(operators.attention(8, "cpu"))
    assert error.value.status == "unsupported"


def test_the_numbers_of_8_bits_need_no_rounding():
    floats = torch.from_numpy(data.float8_pool(0)[: 2**20])
    assert torch.equal(floats.to(torch.float8_e4m3fn).float(), floats)
    assert np.abs(data.float8_pool(0) - data.normal_pool(0)).max() < 0.3
    assert (data.int8_pool(0).min(), data.int8_pool(0).max()) == (-127, 127)


@pytest.mark.parametrize(("precision", "number"), [("float32", 4), ("bfloat16", 2), ("int8", 1)])
def test_the_weights_of_decode_are_counted_and_do_not_fit_into_a_cache(monkeypatch, precision, number):
    assert operators.gemv(precision).bytes_per_step == number * 8192**2
    monkeypatch.setattr(operators, "GEMV_SIDE", 64)
    monkeypatch.setattr(operators, "CACHE_BYTES", 2**16)
    batches = operators.gemv(precision).make_batches(1, 0)
    assert sum(number * weights.size for _, weights, *_ in batches) >= 2**16
    assert not np.array_equal(batches[0][1], batches[-1][1])


def test_causal_attention_counts_the_pairs_that_it_computes():
    heads, numbers, tokens = 1, 64, 1024
    pairs = sum(range(1, tokens + 1))  # of a query and a key that it sees
    assert operators.attention(tokens, "cpu").flops_per_item == pytest.approx(4 * heads * numbers * pairs, rel=2e-3)


def test_a_bandwidth_counts_the_bytes_of_all_its_arrays():
    works = [operators.bandwidth(*item) for item in operators.BANDWIDTHS.items()]
    gigabytes = 4 * operators.COPY_NUMBERS / 1e9
    counts = {work.model: work.items_per_step / gigabytes for work in works}
    assert counts == pytest.approx({"copy": 2, "add": 3, "triad": 3})


def test_a_real_sweep_fills_rows(monkeypatch, tmp_path):
    monkeypatch.setattr(operators, "COPY_NUMBERS", 2**20)
    monkeypatch.setattr(tflops_sweep, "CPU_PEAK_SIDE", 64)
    monkeypatch.setattr(tflops_sweep, "PROBE_SECONDS", 0.002)
    monkeypatch.setattr(operators, "GEMV_SIDE", 64)
    monkeypatch.setattr(operators, "ATTENTION_TOKENS", (8,))
    monkeypatch.setattr(tflops_sweep, "estimate_speed", lambda *_: None)  # a busy machine skips nothing
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
    assert {row["power_probe"] != "" for row in rows if row["model"] == "matmul-peak"} == {True}
    read = [(row["precision"], row["throughput"] == row["bandwidth"]) for row in rows if row["model"] == "gemv"]
    assert read == [("float32", True), ("bfloat16", True), ("int8", True)]
    eight = [(row["precision"], row["measured_precision"]) for row in rows if row["model"] == "matmul-8bit"]
    assert eight == [("int8", "int8"), ("float8_e4m3", "float8_e4m3")]
    assert [row["sequence_length"] for row in rows if row["model"] == "attention"] == ["8"]
