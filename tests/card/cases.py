"""What runs on a card made of software, in a process of its own: test_torch.py starts it."""

import functools
import itertools
import os
import time
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

from bench import child, process
from bench.settings import USED_WITH, read_runs
from tests import fakes
from tests.card.card import Kernels
from tests.frameworks.conftest import tiny_decoders  # noqa: F401
from tests.frameworks.sessions import SMALL, Opener

open_session = Opener("torch")
RUNS = [
    ("image", {"PHASE": "inference", "SCOPE": "device", "PRECISION": "bfloat16"}),
    ("image", {"PHASE": "training", "SCOPE": "device", "MEMORY_FORMAT": "channels_last"}),
    ("mlp", {"PHASE": "training,forward,backward,optimizer", "PRECISION": "mixed_float16", "OPTIMIZER": "adam"}),
    ("transformer", {"PHASE": "training", "PRECISION": "mixed_bfloat16"}),
    ("llm", {"PHASE": "prefill,decode", "PRECISION": "bfloat16"}),
    ("llm", {"PHASE": "training", "PRECISION": "mixed_bfloat16", "LORA_RANK": "2"}),
    ("diffusion", {"PHASE": "inference", "PRECISION": "bfloat16"}),
]
MATMULS = ("addmm", "mm", "convolution", "convolution_backward")


@pytest.fixture
def run(monkeypatch):
    """Return a function that measures as children do: (script, **settings) -> the lines of a small model."""

    def call(name="mlp", **settings):
        phases = {*settings.setdefault("PHASE", "inference").split(",")}
        uses = {each: {*USED_WITH.get(each.lower(), ("phase", phases))[1]} for each in SMALL[name]}
        small = {each: text for each, text in SMALL[name].items() if phases & uses[each]}
        lines, requests = {}, SimpleNamespace(get=itertools.cycle([process.WINDOWS, process.CHECK]).__next__)
        write = lambda line: lines.update({(line["phase"], line["scope"]): line})  # noqa: E731
        monkeypatch.setattr(process, "open_channel", lambda: (write, requests))
        for each in read_runs(name, os.environ | {"MAX_SECONDS": "0.1"} | small | settings):
            with patch.dict(os.environ, each.environ):
                make_workload = functools.partial(fakes.workload_of_command, name)
                assert child.main(name, make_workload, fakes.measure_of_command(name)) == 0
        return list(lines.values())

    return call


@pytest.mark.parametrize(("name", "settings"), RUNS)
def test_a_workload_runs(run, name, settings):
    rows = run(name, **settings)
    assert {row["phase"] for row in rows} == set(settings["PHASE"].split(","))
    for row in rows:
        assert (row["status"], row["device"], row["device_name"]) == ("ok", "cuda", "NVIDIA GeForce RTX 4090"), row
        assert "not_finite" not in row["flags"]


def test_the_peak_is_that_of_weights_and_batches(run):
    (row,) = run()
    weights, batches = 4 * int(row["parameters"]), 4 * 8 * (4 * 3072 + 8)
    assert float(row["peak_memory_bytes"]) == pytest.approx(weights + batches, rel=0.1)


@pytest.mark.parametrize("room", [1e5, 5e6])
def test_a_lack_of_memory_is_a_status(run, room):
    """Test with memory for nothing, and for the weights."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(room / torch.cuda.mem_get_info()[1])
    (row,) = run(MODEL="mlp-64", BATCH_SIZE="100", PHASE="training")
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert row["status"] == "out_of_memory"


@pytest.mark.parametrize(
    ("script", "phase"),
    [("llm", "prefill"), ("llm", "decode"), *itertools.product(("mlp", "image", "llm", "diffusion"), ["training"])],
)
def test_only_the_barrier_waits(monkeypatch, script, phase):
    monkeypatch.setattr(Kernels, "seconds", 1.0)
    session = open_session(script, phase)
    session.step()  # creates the optimizer's state
    session.synchronize()
    began = time.perf_counter()
    session.step()
    assert time.perf_counter() - began < 1
    session.synchronize()
    assert time.perf_counter() - began > 1


# Against the truth


def truth_of(script, phase):
    """Return the seconds of a step in a series that is never read; of a part of training, those of one step."""
    session = open_session(script, phase)
    steps = 1 if session.prepare else 12
    for _ in range(2):  # the first time as a warm-up
        if session.prepare:
            session.prepare()
        session.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            session.step()
        session.synchronize()
        seconds = (time.perf_counter() - began) / steps
    session.close()
    return seconds


PHASES = "inference,training,forward,backward,optimizer"


@pytest.mark.parametrize(
    ("script", "phases", "limit"),
    [("mlp", PHASES, "card"), ("mlp", PHASES, "host"), ("llm", "prefill,decode", "card")],
)
def test_rates_are_true(run, monkeypatch, script, phases, limit):
    """Test with matmuls that take long, and with a host so slow that the operators of a read show."""
    if limit == "card":
        monkeypatch.setattr(Kernels, "seconds_of", dict.fromkeys(MATMULS, 0.030))
        monkeypatch.setattr(Kernels, "seconds", 1e-5)
    else:
        monkeypatch.setattr(Kernels, "host_seconds", 2e-3)
    for row in run(script, PHASE=phases, MAX_SECONDS="1"):
        items = row["items"] / row["windows"] / row["steps_per_window"]
        ratio = row["throughput"] * truth_of(script, row["phase"]) / items
        if row["flags"] == "barrier_shows":
            assert ratio < 0.95
            assert row["phase"] in ("backward", "optimizer")
        else:
            assert row["flags"] in ("", "page_faults")  # the memory of this card is the host's
            assert {"card": 0.999, "host": 0.985}[limit] < ratio < 1.0001
