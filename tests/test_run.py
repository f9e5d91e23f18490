"""The path from settings to row, walked with a framework of one file that nothing else knows of."""

import functools
import re
import shutil
import time
import weakref
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from bench import cli, frameworks, run
from bench.host import environment, meters
from bench.records import columns, report, results, verdict
from bench.settings import FRAMEWORKS, REPEATED, RUN, Framework
from bench.timing import measure
from bench.workloads.workload import Workload
from image_benchmark import ImageSizes, image_batches
from mlp_benchmark import mlp_workload
from transformer_benchmark import transformer_workload


def tiny_workload(settings):
    sizes = ImageSizes(side=8, classes=10)
    return Workload(
        name="image",
        model=settings.model,
        unit="images",
        items_per_step=settings.batch_size,
        make_batches=functools.partial(image_batches, sizes),
        loss="cross_entropy",
        sizes=sizes,
        parameters=1920,
        flops_per_item=3840,
        item_bytes=4 * 3 * 8 * 8,
        columns={"image_size": 8, "data": "synthetic"},
    )


@pytest.fixture
def image(monkeypatch, tmp_path, capsys):
    """Runs a child's main function in this process with these settings; returns (exit status, stdout, stderr, rows)."""
    # A new framework is a file on the package's path and a line in the registry.
    monkeypatch.setitem(FRAMEWORKS, "numpy", Framework("NumPy"))
    shutil.copy("tests/frameworks/on_numpy.py", tmp_path)
    monkeypatch.setattr(frameworks, "__path__", [*frameworks.__path__, str(tmp_path)])
    monkeypatch.setattr(run, "open_canary", lambda *device: None)  # it takes longer than all else here

    def call(script="image", describe_workload=tiny_workload, **environ):
        values = {"FRAMEWORK": "numpy", "MODEL": "linear", "MAX_SECONDS": "0.03", "BATCH_SIZE": "8", "MACHINE": "m"}
        values |= {} if "SUSTAIN" in environ else {"SCOPE": "device"}
        for name, value in (values | environ).items():
            monkeypatch.setenv(name, value)
        status = cli.run_script(lambda: run.run_child(script, describe_workload))
        said = capsys.readouterr()
        path = tmp_path / "results" / "m.csv"
        return status, said.out, said.err, results.read(path) if path.exists() else []

    return call


def test_a_measurement_becomes_a_row(image):
    status, out, _, rows = image(SEED="3", PHASE="inference")
    assert status == 0
    (row,) = rows
    assert (row["status"], row["machine"], row["framework"], row["model"]) == ("ok", "m", "numpy", "linear")
    assert (row["unit"], row["batch_size"], row["image_size"], row["seed"]) == ("images/s", "8", "8", "3")
    assert (row["parameters"], row["scope"], row["optimizer"], row["compile"]) == ("1920", "device", "", "0")
    low, middle, high = (float(row[name]) for name in ("throughput_low", "throughput", "throughput_high"))
    assert low <= middle <= high
    assert float(row["tflops"]) == pytest.approx(middle * 3840 / 1e12, rel=1e-4)
    assert int(row["items"]) == 8 * int(row["windows"]) * int(row["steps_per_window"])
    assert float(re.search(r"device +(\S+) images/s", out)[1]) == pytest.approx(middle, rel=1e-3)
    assert "m.csv" in out


def test_a_later_process_measures_the_main_rate_and_prints_failures_only(image, monkeypatch):
    monkeypatch.setenv(REPEATED, "1")
    monkeypatch.setenv(RUN, "id")
    _, out, _, rows = image(PHASE="training")
    assert ([(row["phase"], row["run_id"]) for row in rows], out) == ([("training", "id")], "")
    assert "wrong_output" in image(MODEL="is_stale", PHASE="inference")[1]


def test_an_output_of_another_step_is_refused_after_the_windows(image):
    status, _, _, (row,) = image(MODEL="is_stale", PHASE="inference")
    assert (status, row["status"]) == (1, "wrong_output")
    assert "last timed output" in row["note"]


OF_OTHERS = {"source", "matrix_size", "message_bytes", "power_probe"}  # of published rows, of the sweep


class Counter:
    """An energy counter of a machine that draws 50 W."""

    power_scope = "gpu board"

    def joules(self):
        return 50 * time.perf_counter()


class Canary:
    """A canary that has been told what to say, or to fail."""

    def __init__(self, said):
        self.said, self.seconds = said, 0.001

    def compare(self):
        if isinstance(self.said, BaseException):
            raise self.said
        return self.said


@pytest.fixture
def instrumented(monkeypatch):
    """A machine with every meter there is, whose windows are short."""
    heat = {"temperature_c": 61, "clock_mhz": 1980, "throttle_reasons": "sw_power_cap"}
    instruments = meters.Instruments(Counter(), lambda: heat)
    monkeypatch.setattr(meters, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(meters, "open_instruments", lambda *device: instruments)
    monkeypatch.setattr(run, "open_canary", lambda *device: Canary((1.07, ["slowed"])))
    monkeypatch.setattr(measure, "ENERGY_SECONDS", 0.05)
    monkeypatch.setattr(measure, "SUSTAINED_SECONDS", 0.1)


def shorten_sustain(monkeypatch, seconds):
    read = run.measure_sustained
    monkeypatch.setattr(run, "measure_sustained", lambda job, instruments, _: read(job, instruments, seconds))


def test_energy_heat_and_idle_power_are_in_the_row(image, instrumented):
    _, out, _, rows = image()
    (row,) = rows
    assert float(row["power_watts"]) == pytest.approx(50, rel=0.01)
    assert float(row["joules_per_item"]) > 0
    assert (row["power_scope"], row["temperature_c"]) == ("gpu board", "61")
    assert float(row["idle_watts"]) == pytest.approx(50, rel=0.02)
    assert (row["clock_mhz"], row["throttle_reasons"], row["canary_ratio"]) == ("1980", "sw_power_cap", "1.07")
    assert row["flags"].split()[-1] == "slowed"
    assert " W of the gpu board, " in out
    assert "slowed: a small matmul" in out


@pytest.mark.parametrize(
    ("mode", "scope", "device", "has_energy"),
    [
        ("step", "device", "cuda", True),
        ("part", "device", "cpu", False),
        ("stream", "input", "cuda", False),  # the card idles
        ("stream", "input", "cpu", True),
    ],
)
def test_energy_is_counted_where_it_is_of_this_work_alone(mode, scope, device, has_energy):
    bench = SimpleNamespace(instruments=SimpleNamespace(counter=Counter()), device=SimpleNamespace(device=device))
    assert bool(run.has_own_energy(bench, mode, scope)) == has_energy


@pytest.mark.parametrize(
    ("fault", "status", "code"), [(KeyboardInterrupt(), "interrupted", 130), (RuntimeError("lost"), "ok", 0)]
)
def test_whatever_becomes_of_the_canary_the_row_stays(image, instrumented, monkeypatch, fault, status, code):
    monkeypatch.setattr(run, "open_canary", lambda *device: Canary(fault))
    said, _, _, rows = image()
    assert (said, rows[0]["status"], rows[0]["canary_ratio"]) == (code, status, "")
    assert float(rows[0]["throughput"]) > 0


def test_a_counter_that_fails_leaves_blanks(image, instrumented, monkeypatch):
    def lost(counter):
        raise OSError("GPU is lost")

    monkeypatch.setattr(Counter, "joules", lost)
    code, _, _, rows = image()
    assert (code, rows[0]["power_watts"], rows[0]["joules_per_item"]) == (0, "", "")
    assert float(rows[0]["throughput"]) > 0


def test_ctrl_c_in_the_energy_window_keeps_the_throughput(image, instrumented, monkeypatch):
    def pressed(*rest):
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "measure_energy", pressed)
    code, _, _, rows = image()
    assert (code, rows[0]["status"], rows[0]["power_watts"]) == (130, "interrupted", "")
    assert float(rows[0]["throughput"]) > 0


def test_a_sustained_run_has_a_row_for_each_part(image, instrumented, monkeypatch):
    shorten_sustain(monkeypatch, 0.35)
    monkeypatch.setattr(verdict, "BURST_SECONDS", 0.15)
    code, out, _, rows = image(SUSTAIN="60")
    assert code == 0
    assert len(rows) >= 3
    assert {(row["scope"], row["stop_reason"], row["canary_ratio"]) for row in rows} == {("sustained", "interval", "")}
    elapsed = [float(row["elapsed_seconds"]) for row in rows]
    assert elapsed == sorted(elapsed)
    assert all(float(row["power_watts"]) == pytest.approx(50, rel=0.05) for row in rows)
    assert "burst" in out
    assert "sustained" in out


def test_every_column_is_filled_and_every_value_has_a_column(image, instrumented, monkeypatch):
    rows = []
    monkeypatch.setattr(results, "append", lambda path, row: rows.append(row))
    with monkeypatch.context() as short:
        shorten_sustain(short, 0.2)
        image(SUSTAIN="60")
    monkeypatch.delenv("SUSTAIN")
    image(SCOPE="device,input,end_to_end")
    image(describe_workload=lambda settings: replace(tiny_workload(settings), bytes_per_step=16))
    image("mlp", mlp_workload, MODEL="mlp-10", DATA="synthetic", EPOCHS="1")
    image("transformer", transformer_workload, MODEL="distilbert", PHASE="inference")
    filled = {name for row in rows for name in row}
    assert set(columns.COLUMNS) - filled == OF_OTHERS
    assert filled <= set(columns.COLUMNS)


def test_the_bytes_of_a_step_become_a_rate_beside_the_measured_one(image, tmp_path):
    def workload(settings):
        return replace(tiny_workload(settings), bytes_per_step=8_000_000)

    moved = {"schema": "1", "status": "ok", "machine": "m", "device": "cpu", "workload": "bandwidth", "model": "copy"}
    results.append(tmp_path / "results" / "m.csv", moved | {"throughput": 50.0, "unit": "GB/s"})
    results.append(tmp_path / "results" / "m.csv", moved | {"throughput": 20.0, "unit": "GB/s"})
    _, out, _, (*_, row) = image(describe_workload=workload)
    # Eight items a step: a megabyte each.
    assert (row["bytes_per_step"], float(row["bandwidth"])) == (
        "8000000",
        pytest.approx(float(row["throughput"]) / 1e3),
    )
    rate, percent = re.search(r"reads (\S+) GB/s \((\S+) % of the bandwidth", out).groups()
    assert float(rate) == pytest.approx(float(row["bandwidth"]), rel=0.01)
    assert float(percent) == pytest.approx(100 * float(row["bandwidth"]) / 50, rel=0.01)
    _, out, _, (*_, plain) = image()
    assert (plain["bytes_per_step"], plain["bandwidth"], "reads" in out) == ("", "", False)


def test_prefill_says_the_time_to_the_first_token():
    row = {"phase": "prefill", "scope": "device", "throughput": 100.0, "unit": "tokens/s", "status": "ok", "flags": ""}
    row |= {
        "step_seconds_median": 0.5,
        "first_step_seconds": 1.0,
        "throughput_low": None,
        "throughput_high": None,
        "windows": 1,
    }
    assert "time to first token 500 ms" in report.describe_result(row)
    assert "first token" not in report.describe_result(row | {"phase": "decode"})


@pytest.mark.parametrize(
    ("model", "status", "reason"),
    [
        ("too_big", "out_of_memory", "unable to allocate 9 TiB"),
        ("unsupported", "unsupported", "NumPy has no such operator"),
        ("crashes", "failed", "RuntimeError: a kernel failed"),
        ("is_constant", "constant_output", "four steps"),
    ],
)
def test_a_failure_becomes_a_row_with_its_reason(image, model, status, reason):
    code, out, _, rows = image(MODEL=model)
    assert code == 1
    assert (rows[0]["status"], rows[0]["throughput"]) == (status, "")
    assert rows[0]["note"].startswith(reason)
    assert rows[0]["framework_version"]
    assert f"{status}: {reason}" in out


def test_inputs_that_cannot_fit_are_not_even_tried(image):
    code, _, _, rows = image(BATCH_SIZE="1000000000")
    assert (code, rows[0]["status"]) == (1, "out_of_memory")
    assert "choose a smaller BATCH_SIZE" in rows[0]["note"]


def test_ctrl_c_writes_what_was_measured(image, monkeypatch):
    def press(windows, steps):
        if len(windows) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(run.report, "progress", lambda *work: nullcontext(press))
    code, out, _, rows = image(MAX_SECONDS="0.3")
    assert (code, len(rows)) == (130, 1)
    assert (rows[0]["status"], rows[0]["stop_reason"], rows[0]["windows"]) == ("interrupted", "interrupted", "3")
    assert float(rows[0]["throughput"]) > 0
    assert "the row contains the completed windows" in out


def test_ctrl_c_before_the_first_window_writes_nothing(image):
    code, out, err, rows = image(MODEL="is_interrupted")
    assert (code, out, rows) == (130, "", [])
    assert "interrupted: " in err


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"BATCH_SIZE": "abc"}, "BATCH_SIZE='abc' .*auto"),
        ({"FRAMEWORK": "pytorch2"}, "FRAMEWORK='pytorch2' .*tensorflow"),
        ({"MODEL": "unknown"}, "MODEL='unknown' .*linear"),
        ({"RESULTS_DIR": "Makefile"}, "RESULTS_DIR='Makefile' "),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(image, environ, said):
    code, out, err, rows = image(**environ)
    assert (code, out, rows) == (2, "", [])
    assert re.match(said, err.splitlines()[-1])


def test_a_file_that_cannot_take_the_row_is_told_before_measuring(image, tmp_path):
    foreign = tmp_path / "results" / "other.csv"
    foreign.parent.mkdir()
    foreign.write_text("device,fps\n")
    code, out, err, _ = image(MACHINE="other", MODEL="is_interrupted")
    assert (code, out) == (2, "")
    assert "foreign header" in err
    assert foreign.read_text() == "device,fps\n"


def test_a_gpu_that_is_not_there_is_warned_of(image, caplog):
    code, _, _, rows = image(USE_GPU="1")
    assert (code, rows[0]["device"]) == (0, "cpu")
    assert "USE_GPU=1" in caplog.text
    assert "numpy" in caplog.text


def test_a_driver_without_a_gpu_is_warned_of(image, caplog, monkeypatch):
    host = environment.describe_host("here")
    monkeypatch.setattr(environment, "describe_host", lambda machine: replace(host, driver="550.1"))
    image()
    assert "driver 550.1" in caplog.text
    assert "numpy" in caplog.text
    caplog.clear()
    image(USE_GPU="0")
    assert "WARNING" not in caplog.text


def test_other_programs_load_before_the_run_is_known_and_costs_no_time(monkeypatch):
    class Load(SimpleNamespace):
        def start(self):
            assert not opened, "the load is read from the start"

        def rate(self):
            return 0.5

    opened = []
    monkeypatch.setattr(meters, "watch_contention", Load)
    monkeypatch.setattr(run, "open_canary", lambda *_: opened.append("canary") or "a canary")
    settings = SimpleNamespace(sustain=None)
    device = SimpleNamespace(device="cpu")
    bench = run.Bench(settings, None, None, device, meters.Instruments())
    looked = run.look_at_rest(bench)
    assert (looked.instruments.others_at_rest, looked.canary, opened) == (0.5, "a canary", ["canary"])
    opened.clear()
    sustained = run.look_at_rest(replace(bench, settings=SimpleNamespace(sustain=60)))
    assert (sustained.instruments.others_at_rest, sustained.canary) == (0, None)  # nothing is measured before it


def test_a_networks_result_that_no_chip_can_reach_is_flagged(image, monkeypatch):
    asked = []

    def is_implausible(row):
        asked.append((row["model"], row["device"], row["gpu_cores"], row["tflops"] > 0))
        return True

    monkeypatch.setattr(run.peaks, "is_implausible", is_implausible)
    _, out, _, rows = image()
    assert rows[0]["flags"].split()[-1] == "implausible"
    assert "implausible: " in out
    assert asked == [("linear", "cpu", None, True)]


def test_a_users_allocator_settings_are_in_the_row(image, monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "100000000")
    *_, rows = image()
    assert rows[0]["allocator"] == "MALLOC_TRIM_THRESHOLD_=100000000"


def test_the_three_scopes_and_the_verdict(image):
    code, out, _, rows = image(SCOPE="device,input,end_to_end", NUM_WORKERS="1")
    assert code == 0
    assert [row["scope"] for row in rows] == ["device", "input", "end_to_end"]
    assert [row["bottleneck"] != "" for row in rows] == [False, False, True]
    assert [row["tflops"] != "" for row in rows] == [True, False, True]
    assert [row["num_workers"] for row in rows] == ["", "1", "1"]
    assert len({row["run_id"] for row in rows}) == 1
    assert rows[2]["note"] in out


def test_a_failure_is_the_last_row_of_its_run(image):
    code, _, _, rows = image(MODEL="too_big", SCOPE="device,input,end_to_end")
    assert (code, len(rows)) == (1, 1)


def test_num_images_are_rounded_up_to_whole_batches(image):
    code, _, _, rows = image(NUM_IMAGES="1003", BATCH_SIZE="100")
    assert code == 0
    assert (rows[0]["items"], rows[0]["stop_reason"], rows[0]["batch_size"]) == ("1100", "num_images", "100")


def test_what_a_failed_step_allocated_is_free_before_the_session_closes(image, monkeypatch):
    class Array:
        pass

    kept, seen = [], []

    def infer(inputs):
        array = Array()
        kept.append(weakref.ref(array))
        raise MemoryError("out of memory")

    numpy = frameworks.load("numpy")
    monkeypatch.setattr(numpy.Model, "infer", lambda self, inputs: infer(inputs))
    monkeypatch.setattr(numpy.DeviceContext, "release", lambda self: seen.append(kept[-1]()))
    *_, rows = image()
    assert (rows[0]["status"], seen[-1]) == ("out_of_memory", None)


def test_a_result_that_cannot_be_stored_is_shown_all_the_same(image, monkeypatch):
    def full(path, row):
        raise results.ResultsError("the disk is full")

    monkeypatch.setattr(results, "append", full)
    code, out, err, _ = image()
    assert code == 2
    assert "images/s" in out
    assert err.splitlines()[-1] == "the disk is full"


def test_a_reader_that_has_gone_is_not_a_failure(image, monkeypatch):
    def gone(*row):
        raise BrokenPipeError

    monkeypatch.setattr(report, "describe_result", gone)
    monkeypatch.setattr(cli, "discard_output", lambda status: status)
    code, _, _, rows = image()
    assert (code, [row["status"] for row in rows]) == (1, ["ok"])


def test_a_framework_of_one_file_runs_make_mlp(image, monkeypatch):
    code, out, _, rows = image("mlp", mlp_workload, MODEL="mlp-10", DATA="synthetic", BATCH_SIZE="32", EPOCHS="2")
    assert code == 0
    assert [row["phase"] for row in rows] == ["training", "forward", "backward", "optimizer", "training", "training"]
    assert [(row["scope"], row["epoch"]) for row in rows[-2:]] == [("epoch", "1"), ("epoch", "2")]
    assert {(row["workload"], row["data"], row["framework"]) for row in rows} == {("mlp", "synthetic", "numpy")}
    first, last = rows[-2:]
    assert float(last["loss_mean"]) < float(first["loss_mean"])
    assert 0.1 < float(last["accuracy"]) <= 1
    assert last["items"] == "50000"
    assert float(last["throughput"]) == pytest.approx(50_000 / float(last["seconds"]), rel=1e-4)
    assert out.count(" us per image, mean loss ") == 2
