"""The sweep of a machine's limits: on a fake machine of given speed, then on this CPU."""

import pytest

import tflops_sweep
from bench import child, process
from bench.host.environment import read_host
from bench.records.rows import complete_row, work_cells
from bench.timing import MeasurementError

RATES = {"matmul": {32: 0.1, 64: 0.4, 128: 0.3, 512: 0.35}, "conv1x1": 0.2, "conv3x3": 0.25}
RATES["matmul-8bit"] = 0.9


def run_sweep(monkeypatch, environ):
    """Run the sweep in this process, as a child does; returns (exit status, rows)."""
    about, lines = complete_row(read_host("m"), {}), []
    with monkeypatch.context() as changed:
        for name, value in ({"USE_GPU": "0"} | environ).items():
            changed.setenv(name, value)
        changed.setattr(process, "open_channel", lambda: (lines.append, None))
        status = child.main("tflops", None, tflops_sweep.measure_sweep)
    return status, [about | line for line in lines]


@pytest.fixture
def sweep(monkeypatch):
    """Sweep a machine of these TFLOP/s; returns (exit status, rows, [(precision, model, side, seed)])."""
    monkeypatch.setattr(tflops_sweep, "CPU_PEAK_SIDE", 128)

    def call(rates=None, fails=None, again=1.0, interrupted=None, **environ):
        calls, fails = [], fails or {}

        def measure_scopes(measurer, workload, scopes, keep):
            settings, rate = measurer.settings, (RATES | (rates or {})).get(workload.model)
            side = int(workload.columns.get("matrix_size", "0").split("x")[0])
            calls.append((settings.precision, workload.model, side, settings.seed))
            if reason := fails.get(settings.precision) or fails.get(side) or fails.get(f"seed {settings.seed}"):
                raise KeyboardInterrupt if reason == "Ctrl-C" else MeasurementError(reason, "not here")
            found = work_cells(settings, workload, "device") | {"flags": "", "note": ""}
            if isinstance(rate, dict):
                rate = rate[side] * (again if settings.seed else 1)
            status = "interrupted" if side == interrupted else "ok"
            found |= {"throughput": rate or 40.0, "throughput_high": 2 * (rate or 40.0), "tflops": rate}
            keep(found | {"status": status})
            if side == interrupted:
                raise KeyboardInterrupt

        monkeypatch.setattr(child.Measurer, "measure_scopes", measure_scopes)
        asked = {"SIZES": "32,64,128", "PRECISION": "float32", "OPS": "matmul,convolution,bandwidth"}
        asked = {name: text for name, text in (asked | environ).items() if text}
        return *run_sweep(monkeypatch, asked), calls

    return call


def peak_of(rows):
    (peak,) = [row for row in rows if row["model"] == "matmul-peak"]
    return peak


def test_the_best_size_is_measured_again_as_the_peak(sweep):
    status, rows, calls = sweep(again=0.9)
    matmuls = [("float32", "matmul", side, 0) for side in (32, 64, 128)]
    assert calls[:5] == [*matmuls, ("float32", "matmul", 64, 1), ("float32", "conv1x1", 64, 1)]
    assert (status, peak_of(rows)["workload"], peak_of(rows)["matrix_size"]) == (0, "matmul", "64x64x64")
    assert peak_of(rows)["tflops"] == pytest.approx(0.36)
    peak = peak_of(sweep({"conv1x1": 0.9})[1])
    assert (peak["workload"], peak["tflops"], peak["memory_format"]) == ("matmul", 0.9, "channels_last")
    assert "matmul-peak" not in {row["model"] for row in sweep(SIZES="32,64")[1]}  # small ones show no peak


def test_a_precision_that_is_not_there_is_one_row_and_a_size_that_is_refused_does_not_end_the_sweep(sweep):
    status, rows, _ = sweep(fails={"tf32": "unsupported", 32: "wrong_output"}, PRECISION="tf32,float32")
    found = [(row["precision"], row["matrix_size"], row["status"]) for row in rows if row["model"] == "matmul"]
    assert (status, found[:2]) == (0, [("tf32", "32x32x32", "unsupported"), ("float32", "32x32x32", "wrong_output")])
    assert found[2:] == [("float32", "64x64x64", "ok"), ("float32", "128x128x128", "ok")]
    assert peak_of(rows)["precision"] == "float32"


@pytest.mark.parametrize(("trial", "measured"), [(1e-6, [32]), (0.5, [32, 8192])])  # twice as high at its best
def test_what_takes_too_long_is_skipped_which_a_tiny_one_does_not_predict(sweep, trial, measured):
    rates = {32: 1e-6, 512: trial, 8192: 1.0}
    _, rows, _ = sweep({"matmul": rates}, SIZES="32,8192", MAX_SECONDS="3")
    assert [row["matrix_size"] for row in rows if row["model"] == "matmul"] == [f"{m}x{m}x{m}" for m in measured]


@pytest.mark.parametrize("how", [{"interrupted": 64}, {"fails": {64: "Ctrl-C"}}])  # after a window, before any
def test_ctrl_c_keeps_what_was_measured_and_has_a_row(sweep, how):
    status, rows, calls = sweep(**how)
    assert (status, [row["status"] for row in rows], calls[-1][2]) == (130, ["ok", "interrupted"], 64)
    *others, peak = sweep(fails={"seed 1": "Ctrl-C"})[1]
    assert ([row["status"] for row in others], peak["model"]) == (["ok"] * 3, "matmul-peak")


def test_8_bits_are_compared_with_bfloat16(sweep):
    _, rows, _ = sweep(OPS="int8", SIZES="", PRECISION="")
    found = [(row["model"], row["precision"], row["unit"]) for row in rows]
    assert found == [("matmul-8bit", "int8", "matmuls/s"), ("matmul", "bfloat16", "matmuls/s")]
    _, rows, _ = sweep({"matmul-8bit": 99.0}, OPS="matmul,int8,float8", PRECISION="bfloat16")
    assert peak_of(rows)["tflops"] == 0.4


def test_a_real_sweep_fills_rows(monkeypatch):
    monkeypatch.setattr(tflops_sweep, "CPU_PEAK_SIDE", 64)
    environ = {"SIZES": "32,64x64x128", "PRECISION": "float32", "OPS": "matmul", "MAX_SECONDS": "0.05"}
    status, rows = run_sweep(monkeypatch, environ)
    assert status == 0
    assert {"matmul", "matmul-peak", "conv1x1"} <= {row["model"] for row in rows if row["status"] == "ok"}
    assert {row["model"] for row in rows if row["status"] == process.BEGUN} == {"matmul", "matmul-peak", "conv1x1"}


def test_what_does_not_fit_names_settings_of_a_sweep(monkeypatch):
    monkeypatch.setattr(child.resources, "available_bytes", lambda: 0)
    *_, row = run_sweep(monkeypatch, {"OPS": "bandwidth"})[1]
    assert (row["status"], "OPS" in row["note"], "MODEL" in row["note"]) == ("out_of_memory", True, False)
