"""A child process, line by line, with a framework of one file in place of PyTorch."""

import functools
import time
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from bench import child as child_process
from bench import frameworks, process
from bench.frameworks.session import Session
from bench.host import environment, meters
from bench.records.columns import COLUMNS
from bench.settings import SettingError
from bench.timing import windows
from bench.workloads import cifar10, data
from bench.workloads.workload import Workload
from mlp_benchmark import mlp_workload
from tests.fakes import Clock, measure_of_command
from tests.frameworks import on_numpy


def tiny_workload(settings):
    return Workload(
        name="image",
        model=settings.model,
        unit="images",
        items_per_step=settings.batch_size,
        make_batches=functools.partial(data.image_batches, 8),
        loss="cross_entropy",
        sizes=8,
        parameters=192_000,
        flops_per_item=384_000,
        batch_bytes=settings.batch_size * 4 * 3 * 8 * 8,
        bytes_per_step=8_000_000,
        columns={"image_size": 8, "data": "synthetic"},
    )


@pytest.fixture
def child(monkeypatch):
    """Measure these settings in this process, as a child does; returns (exit status, its lines)."""
    monkeypatch.setattr(frameworks, "load", lambda name: on_numpy)

    def call(command="image", workload=tiny_workload, requests=None, said=None, **environ):
        values = {"MODEL": "linear", "MAX_SECONDS": "0.1", "BATCH_SIZE": "8", "USE_GPU": "0"}
        values |= {} if "SUSTAIN" in environ else {"SCOPE": "device"}
        lines = []
        with monkeypatch.context() as changed:
            for name, value in (values | environ).items():
                if value is not None:
                    changed.setenv(name, value)
            changed.setattr(process, "open_channel", lambda: (lines.append, requests))
            status = child_process.main(command, workload, measure_of_command(command))
        if said is not None:
            said += lines
        # Each measurement is announced, so that the death of the process has a row.
        begun = dict.fromkeys((line["phase"], line["scope"]) for line in lines if line["status"] == process.BEGUN)
        lines = [line for line in lines if line["status"] != process.BEGUN]
        lines = list({(line["phase"], line["scope"], line.get("epoch")): line for line in lines}.values())
        assert list(begun)[: len(lines)] == list(dict.fromkeys((line["phase"], line["scope"]) for line in lines))
        assert {name for line in lines for name in line} <= {*COLUMNS}
        return status, lines

    return call


def test_a_measurement_becomes_a_line(child):
    status, (line,) = child(SEED="3")
    assert (status, line["status"], line["phase"], line["scope"]) == (0, "ok", "inference", "device")
    assert [line[name] for name in ("batch_size", "image_size", "seed", "parameters")] == [8, 8, 3, 192_000]
    assert line["throughput_low"] <= line["throughput"] <= line["throughput_high"]
    assert line["items"] == 8 * line["windows"] * line["steps_per_window"]
    assert line["tflops"] == pytest.approx(line["throughput"] * 384_000 / 1e12)
    assert line["bandwidth"] == pytest.approx(line["throughput"] / 8 * 0.008)
    assert line["measured_precision"] == "float32"
    assert (line["optimizer"], line.get("num_workers")) == (None, None)  # inference on resident batches has neither


@pytest.mark.parametrize("workers", [3, 0])
def test_scopes_have_a_line_each(child, monkeypatch, workers):
    monkeypatch.setattr("bench.timing.windows.ENOUGH_QUEUES", 10**9)  # each pipeline is short
    status, lines = child(SCOPE="device,input,end_to_end", NUM_WORKERS=str(workers))
    assert [bool(line["note"]) for line in lines] == [False, workers > 0, workers > 0]
    assert (status, [line["scope"] for line in lines]) == (0, ["device", "end_to_end", "input"])
    assert [line["data"] for line in lines] == ["synthetic", "jpeg_q96", "jpeg_q96"]
    assert [line.get("num_workers") for line in lines] == [None, workers, workers]
    assert ["tflops" in line for line in lines] == [True, True, False]
    assert [line["output_error"] is None for line in lines] == [False, False, True]


@pytest.mark.parametrize(
    ("error", "status"),
    [(MemoryError("9 TiB"), "ok"), (NotImplementedError("9 TiB"), "ok"), (TypeError("9"), "failed")],
)
def test_a_reference_without_room_leaves_the_rate_and_a_note_and_one_that_fails_does_not(
    child, monkeypatch, error, status
):
    monkeypatch.setattr(on_numpy.Model, "on_cpu", Mock(side_effect=error))
    code, (line,) = child()
    assert (code, line["status"], line.get("output_error")) == (0, status, None)
    assert (str(error) in line["note"], bool(line.get("throughput"))) == (True, status == "ok")


@pytest.mark.parametrize(
    ("error", "code", "statuses"), [(OSError("a worker died"), 0, ["ok", "failed"]), (KeyboardInterrupt, 130, ["ok"])]
)
def test_a_scope_is_compared_although_a_later_one_fails(child, monkeypatch, error, code, statuses):
    monkeypatch.setattr(Session, "read_files", Mock(side_effect=error))
    status, lines = child(SCOPE="device,input,end_to_end", NUM_WORKERS="1")
    assert (status, [line["status"] for line in lines], lines[0]["note"]) == (code, statuses, "")
    assert lines[0]["output_error"] is not None


@pytest.mark.parametrize(
    ("device", "environ", "asked"),
    [("cpu", {}, {-4: 0, -1: -1}), ("cpu", {"MALLOC_TRIM_THRESHOLD_": "7"}, {-4: 0}), ("cuda", {}, {})],
)
def test_glibc_keeps_memory_in_a_process_on_a_cpu_unless_the_user_sets_it(child, monkeypatch, device, environ, asked):
    given, found = {}, replace(on_numpy.find_device(None), type=device)
    monkeypatch.setattr(on_numpy, "find_device", lambda settings: found)
    glibc = SimpleNamespace(mallopt=given.__setitem__, malloc_trim=lambda size: None)
    monkeypatch.setattr(meters.ctypes, "CDLL", lambda name: glibc)
    child(**environ)
    assert given == asked


def few_images(settings):
    """Return a workload of 2000 images and a test set of one image with each of the ten labels, of which one fits."""
    images, labels = cifar10.synthetic_images(2000, seed=0)
    images = cifar10.as_floats(images)
    dataset = images, labels, images[:1].repeat(10, 0), np.arange(10)
    return replace(mlp_workload(settings), parameters=None, dataset=lambda: dataset)


def test_epochs_are_lines_with_their_loss_and_accuracy(child):
    status, lines = child("mlp", few_images, MODEL="mlp-10", DATA="synthetic", BATCH_SIZE="32", EPOCHS="2")
    first, last = lines[-2:]
    assert (status, [line["phase"] for line in lines]) == (0, ["training"] * 3)
    assert [(line["scope"], line["epoch"]) for line in (first, last)] == [("epoch", 1), ("epoch", 2)]
    assert last["loss_mean"] < first["loss_mean"]
    assert last["accuracy"] == 0.1
    assert last["throughput"] == pytest.approx(2000 / last["seconds"])


@pytest.mark.parametrize(
    ("model", "status", "reason"),
    [
        ("too_big", "out_of_memory", "unable to allocate 9 TiB"),
        ("crashes", "failed", "RuntimeError: a kernel failed"),
        ("is_wrong_later", "wrong_output", "differs from the CPU's"),
    ],
)
def test_a_failure_is_the_last_line(child, model, status, reason):
    code, (line, *_) = child(MODEL=model, SCOPE="device,input,end_to_end")
    assert (code, line["status"], line.get("throughput")) == (0, status, None)
    assert reason in line["note"]


@pytest.mark.parametrize(
    ("device", "is_integrated", "memory", "inputs", "fits"),
    [
        ("cuda", None, None, 2, False),
        ("cuda", None, 9, 2, True),
        ("cuda", None, 9, 2000, False),
        ("cuda", True, 9, 2, False),
        ("mps", None, None, 2, False),
    ],
)
def test_what_cannot_fit_is_not_even_tried(child, monkeypatch, device, is_integrated, memory, inputs, fits):
    device = frameworks.Device(device, None, "1", 1, is_integrated=is_integrated)
    monkeypatch.setattr(on_numpy, "find_device", lambda settings: device)
    monkeypatch.setattr(child_process.resources, "available_bytes", lambda: 2 * 10**6)
    monkeypatch.setattr(child_process.resources, "find_card", lambda: environment.NvidiaGpu("GB10", memory=memory))
    sizes = {"batch_bytes": 8000 * inputs, "resident_bytes": 2 * 10**6}
    _, (line,) = child(workload=lambda settings: replace(tiny_workload(settings), **sizes))
    assert line["status"] == ("ok" if fits else "out_of_memory")
    assert fits or ("BATCH_SIZE" in line["note"] and "SIZES" not in line["note"])  # a setting of the command


def test_ctrl_c_keeps_the_complete_windows(child, monkeypatch):
    def press(timer, elapsed):
        if len(timer.windows) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(windows.Timer, "find_stop_reason", press)
    code, (line,) = child(MAX_SECONDS="0.3", SCOPE="device,input")
    assert (code, line["status"], line["windows"]) == (130, "interrupted", 3)
    assert line["throughput"] > 0
    assert child(MODEL="is_interrupted") == (130, [])  # before the first window


def test_a_framework_that_cannot_be_loaded_is_named_with_the_reason(monkeypatch):
    kind = type("NotFoundError", (Exception,), {})  # TensorFlow's
    monkeypatch.setattr(frameworks.importlib, "import_module", Mock(side_effect=kind("libcudart.so.13:\nno file")))
    with pytest.raises(SettingError, match=r"jax.*libcudart.so.13: no file"):
        frameworks.load("jax")


def test_a_gpu_that_is_missing_or_slow_to_start_is_warned_of(child, monkeypatch, caplog):
    _, (line,) = child(USE_GPU="1")
    assert (line["device"], "WARNING" in caplog.text) == ("cpu", True)
    device = frameworks.Device("cuda", None, "1", 1, note="kernels are compiled first")
    monkeypatch.setattr(on_numpy, "find_device", lambda settings: device)
    child()
    assert device.note in caplog.text


def ask(*requests):
    """Return a queue with these requests; KeyboardInterrupt is a Ctrl-C while the child waits for one."""
    return SimpleNamespace(get=Mock(side_effect=requests))


SLICE = {"slice": 0.01}


def test_a_child_measures_what_it_is_asked_for(child):
    lines = []
    status, (line,) = child(requests=ask(SLICE, SLICE, SLICE, {"check": True}), said=lines)
    assert (status, line["stop_reason"], len(line["rates"].split())) == (0, "slices", 3)
    assert [each["note"] for each in lines].count(process.WAITING) == 4
    status, (line,) = child(requests=ask(process.WINDOWS, process.CHECK))
    assert (status, line["stop_reason"] in ("target_ci", "max_seconds")) == (0, True)


def test_after_ctrl_c_a_waiting_child_has_the_row_of_its_slices(child):
    code, (line,) = child(requests=ask(SLICE, KeyboardInterrupt))
    assert (code, line["status"], len(line["rates"].split())) == (130, "interrupted", 1)


@pytest.mark.parametrize(("spinning", "waited"), [(0, 0.01), (0.2, 0.21), (9, 0.3)])
def test_a_child_waits_when_its_threads_have_stopped(monkeypatch, spinning, waited):
    clock = Clock()
    names = {"process_time": lambda: min(clock.now, spinning), "sleep": clock.sleep}
    monkeypatch.setattr(child_process, "time", SimpleNamespace(**names))
    child_process.wait_until_idle()
    assert clock.now == pytest.approx(waited)


@pytest.fixture
def instrumented(child, monkeypatch):
    """A machine with every meter there is, whose windows are short."""
    heat = {"temperature_c": 61, "clock_mhz": 1980, "throttle_reasons": "sw_power_cap"}
    joules = lambda: 50 * time.perf_counter()  # noqa: E731  # of a machine that draws 50 W
    instruments = meters.Instruments(joules, "gpu board", 0.0001, lambda: heat)
    monkeypatch.setattr(meters, "open_instruments", lambda *device: instruments)
    monkeypatch.setattr(windows, "SUSTAINED_SECONDS", 0.1)
    return child


@pytest.mark.parametrize(
    ("requests", "environ", "with_energy"),
    [
        (None, {"SCOPE": "device,input"}, ["device"]),
        (None, {"SCOPE": None}, ["device", "end_to_end"]),
        (None, {"SCOPE": None, "FRAMEWORK": "tensorflow"}, ["device"]),  # which has no pipeline
        (None, {"NUM_IMAGES": "64"}, []),
        ((SLICE, {"check": True}), {}, []),
        (None, {"PHASE": "forward"}, ["device"]),
        (None, {"PHASE": "backward"}, []),  # others run before each step
    ],
)
def test_energy_is_that_of_models_by_themselves(instrumented, requests, environ, with_energy):
    settings = {"PHASE": "training"} | environ
    status, lines = instrumented(requests=ask(*requests) if requests else None, **settings)
    assert status == 0
    assert [line["scope"] for line in lines if line.get("power_watts")] == with_energy
    line = lines[0]
    heat = None if requests else 61  # after slices it is that of other processes
    assert [line.get(name) for name in ("temperature_c", "phase", "optimizer")] == [heat, settings["PHASE"], "sgd"]
    if with_energy:
        assert (line["power_scope"], line["joules_per_item"] > 0) == ("gpu board", True)
        assert line["power_watts"] == pytest.approx(50, rel=0.1)


def test_ctrl_c_after_the_windows_keeps_the_throughput(instrumented, monkeypatch):
    monkeypatch.setattr(child_process.check, "check_output", Mock(side_effect=KeyboardInterrupt))
    code, (line,) = instrumented()
    assert (code, line["status"], line["note"]) == (130, "ok", "not compared with the CPU: interrupted")
    assert line["throughput"] > 0


def test_a_sustained_run_has_one_line_with_a_rate_for_each_part(instrumented, monkeypatch):
    make = child_process.Timer
    monkeypatch.setattr(child_process, "Timer", lambda *session, **limits: make(*session, **limits | {"sustain": 0.35}))
    code, (line,) = instrumented(SUSTAIN="60")
    assert (code, line["scope"], line["stop_reason"]) == (0, "sustained", "sustain")
    assert len(line["rates"].split()) >= 2
    assert line["throughput"] == pytest.approx(line["items"] / line["seconds"])
    assert line["power_watts"] == pytest.approx(50, rel=0.05)
