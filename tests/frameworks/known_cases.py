"""What runs on a device of known speed, in a process of its own: test_known.py starts it.

Scripts run as users call them, from the settings to the row in the file; only their child process is this one.
"""

import itertools

import pytest
import torch

from bench.frameworks import base
from bench.frameworks.pytorch import on_torch_images
from bench.records.tables import combine_rows as combine
from tests.frameworks.known_device import sim
from tests.frameworks.sessions import Opener
from tests.timing.test_windows import Pipeline

open_session = Opener("torch")
MATMULS = ("linear", "conv2d", "addmm", "mm", "convolution", "convolution_backward")  # the first two in inference


@pytest.fixture(autouse=True)
def matmuls_that_take_30_ms(monkeypatch):
    """Other operators take 10 us of the device, and all of them 1 us of the host."""
    for name in ("seconds", "host_seconds", "has_barrier", "refused"):
        monkeypatch.setattr(sim, name, getattr(sim, name))
    sim.seconds, sim.host_seconds = lambda operator: 0.030 if operator in MATMULS else 1e-5, 1e-6


@pytest.fixture
def run(run_in_process):
    """Run a script on a small model: (its name, **settings) -> its rows."""

    def call(name="mlp", **settings):
        rows = run_in_process(name, **settings)
        assert {row["device"] for row in rows} == {"sim"}
        return rows

    return call


def truth_of(script, phase, **settings):
    """Return the seconds of a step in an endless series, which is neither awaited nor read.

    For a part of training that others come before, return those of one step from an idle device on.
    """
    session = open_session(script, phase, **settings)
    steps = 1 if session.prepare else 12
    for _ in range(2):  # the first time as a warm-up
        if session.prepare:
            session.prepare()
            sim.synchronize()
        start = max(sim.now, sim.free_at)
        for _ in range(steps):
            session.step()
    session.close()
    return (max(sim.now, sim.free_at) - start) / steps


def ratio_of(row, seconds):
    """Return measured / true rate."""
    items = int(row["items"]) / int(row["windows"]) / int(row["steps_per_window"])
    return float(row["throughput"]) * seconds / items


@pytest.mark.parametrize(
    ("device", "host", "least"),
    [(None, 1e-6, 0.999), (1e-4, 2e-3, 0.985), (1e-3, 1e-3, 0.98)],
    ids=["device", "host", "balanced"],
)
def test_rates_of_an_mlp_are_true(run, device, host, least):
    """Test with matmuls that take long, and with operators so slow that the one of a read shows."""
    usual = sim.seconds
    sim.seconds, sim.host_seconds = lambda operator: device or usual(operator), host
    for row in run(PHASE="inference,training,forward,backward,optimizer"):
        ratio = ratio_of(row, truth_of("mlp", row["phase"]))
        if row["flags"] == "barrier_shows":
            assert (ratio < 0.95, row["phase"] in ("backward", "optimizer")) == (True, True)
        else:
            assert (row["flags"], least < ratio < 1.0001) == ("", True)


def test_a_step_of_21_operators_takes_as_long_as_they_do():
    sim.seconds = lambda operator: 0.005
    assert truth_of("mlp", "training", MODEL="mlp-16-16") == pytest.approx(21 * 0.005)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_rates_of_a_decoder_are_true(run, phase):
    (row,) = run("llm", PHASE=phase)
    assert ratio_of(row, truth_of("llm", phase)) == pytest.approx(1, abs=0.01)


def count_steps(usual, other, is_other):
    """Let a matmul take `other` seconds instead of the usual ones in steps whose number is_other()."""
    calls = itertools.count()

    def seconds(operator):
        step = next(calls) // 2 if operator == "linear" else 0  # mlp-16 has two in each step
        return 1e-5 if operator not in MATMULS else other if is_other(step) else usual

    sim.seconds = seconds


def test_one_slow_step_in_twelve_shows(run):
    count_steps(0.03, 0.3, lambda step: step % 12 == 0)
    (row,) = run(NUM_IMAGES=str(8 * 120))
    assert ratio_of(row, (11 * 0.06 + 0.6) / 12) == pytest.approx(1, abs=0.01)
    assert float(row["step_seconds_median"]) == pytest.approx(0.06, rel=0.01)
    assert float(row["step_seconds_p95"]) == pytest.approx(0.6, rel=0.01)


@pytest.mark.parametrize(("seconds", "limit"), [(2.0, "input"), (0.1, "device")])
def test_the_part_that_limits_a_pipeline_is_named(run, monkeypatch, seconds, limit):
    """Two workers need so many seconds for a batch, and the device 0.6 for its twenty convolutions and a matmul."""

    def open_stream(workload, settings, pins_memory):
        workers, batches = Pipeline(sim, seconds), itertools.cycle(workload.make_batches(settings.batch_size, 0))
        return base.Stream((workers.step() or batch for batch in batches), workers.num_workers, workers.queue_steps)

    monkeypatch.setattr(on_torch_images, "open_stream", open_stream)
    resident, both, prepared = rows = run("image", MAX_SECONDS="20")
    assert ratio_of(prepared, seconds / 2) == pytest.approx(1, abs=0.01)
    of_device = truth_of("image", "inference")
    assert ratio_of(both, max(seconds / 2, of_device)) == pytest.approx(1, abs=0.01)
    found = next(row for row in combine(rows) if row["scope"] == "end_to_end")
    assert (ratio_of(resident, of_device), found["bottleneck"]) == (pytest.approx(1, abs=0.01), limit)


def test_a_barrier_that_returns_at_once_changes_nothing(run):
    sim.has_barrier = False
    (row,) = run()
    assert ratio_of(row, truth_of("mlp", "inference")) == pytest.approx(1, abs=0.012)


@pytest.mark.parametrize(
    ("script", "phase", "precision"),
    [
        *(("mlp", "training", precision) for precision in ("float32", "mixed_bfloat16", "mixed_float16")),
        *(("llm", phase, "bfloat16") for phase in ("prefill", "decode", "training")),
        *itertools.product(("image", "transformer", "diffusion"), ("inference", "training"), ("float32",)),
    ],
)
def test_a_step_waits_for_nothing(script, phase, precision):
    sim.refused = (torch.float64,)
    session = open_session(script, phase, PRECISION=precision)
    session.step()  # creates the optimizer's state
    before = sim.reads
    session.step()
    assert sim.reads == before
    session.read()
    assert sim.reads == before + 1
