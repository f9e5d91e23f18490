"""What runs on a device of known speed, in a process of its own: test_known.py starts it.

Scripts are measured as their children do it, from the settings to the lines of results.
"""

import itertools

import pytest

from bench.frameworks.pytorch import on_torch_images
from tests.frameworks.known_device import sim
from tests.frameworks.sessions import Opener
from tests.timing.test_windows import Pipeline

open_session = Opener("torch")
MATMULS = ("linear", "conv2d", "addmm", "mm", "convolution", "convolution_backward")  # the first two in inference


@pytest.fixture(autouse=True)
def matmuls_that_take_30_ms(monkeypatch):
    """Other operators take 10 us of the device, and all of them 1 us of the host."""
    monkeypatch.setattr(sim, "seconds", lambda operator: 0.030 if operator in MATMULS else 1e-5)
    monkeypatch.setattr(sim, "host_seconds", 1e-6)


@pytest.fixture
def run(run_in_process):
    """Measure a small model: (script, **settings) -> the lines of its results."""

    def call(name="mlp", **settings):
        rows = run_in_process(name, **settings)
        assert {row["device"] for row in rows} == {"sim"}
        return rows

    return call


def truth_of(script, phase):
    """Return the seconds of a step in an endless series, which is neither awaited nor read.

    For a part of training that others come before, return those of one step from an idle device on.
    """
    session = open_session(script, phase)
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
    ("device", "host", "least"), [(None, 1e-6, 0.999), (1e-4, 2e-3, 0.985)], ids=["device", "host"]
)
def test_rates_of_an_mlp_are_true(run, monkeypatch, device, host, least):
    """Test with matmuls that take long, and with a host so slow that the operators of a read show."""
    usual = sim.seconds
    monkeypatch.setattr(sim, "seconds", lambda operator: device or usual(operator))
    monkeypatch.setattr(sim, "host_seconds", host)
    for row in run(PHASE="inference,training,forward,backward,optimizer"):
        ratio = ratio_of(row, truth_of("mlp", row["phase"]))
        is_part = row["phase"] in ("backward", "optimizer")
        if row["flags"] == "barrier_shows":
            assert (ratio < 0.95, is_part) == (True, True)
        else:
            assert (row["flags"], least < ratio < 1.0001) == ("", True)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_rates_of_a_decoder_are_true(run, phase):
    (row,) = run("llm", PHASE=phase)
    assert ratio_of(row, truth_of("llm", phase)) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("seconds", [2.0, 0.1])
def test_the_part_that_limits_a_pipeline_decides(run, monkeypatch, seconds):
    """Two workers need so many seconds for a batch, and the device 0.6 for its twenty convolutions and a matmul."""

    def open_stream(workload, settings, pins_memory):
        workers, batches = Pipeline(sim, seconds), itertools.cycle(workload.make_batches(settings.batch_size, 0))
        return (workers.step() or batch for batch in batches)

    monkeypatch.setattr(on_torch_images, "open_stream", open_stream)
    lines = run("image", MAX_SECONDS="20", NUM_WORKERS="2")
    assert len(lines) == 3, lines
    resident, both, prepared = lines
    assert ratio_of(prepared, seconds / 2) == pytest.approx(1, abs=0.01)
    of_device = truth_of("image", "inference")
    assert ratio_of(both, max(seconds / 2, of_device)) == pytest.approx(1, abs=0.01)
    assert ratio_of(resident, of_device) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("script", "phase"),
    [("llm", "prefill"), ("llm", "decode"), *itertools.product(("mlp", "image", "llm", "diffusion"), ["training"])],
)
def test_a_step_waits_for_nothing(script, phase):
    session = open_session(script, phase)
    session.step()  # creates the optimizer's state
    before = sim.reads
    session.step()
    assert sim.reads == before
    session.read()
    assert sim.reads == before + 1
