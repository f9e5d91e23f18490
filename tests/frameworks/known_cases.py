"""What runs on a device of known speed, in a process of its own: test_known.py starts it.

Scripts run as users call them, from the settings to the row in the file; only their child process is this one.
"""

import csv
import os
import runpy
import sys
from unittest.mock import patch

import pytest
import torch

from bench import cli
from bench.frameworks import base, on_torch_images
from bench.timing import canary, measure
from bench.workloads import operators
from tests.fakes import Workers
from tests.frameworks.known_device import sim
from tests.frameworks.sessions import SMALL, Opener

open_session = Opener("torch")
MATMULS = ("addmm", "mm", "bmm", "convolution", "convolution_backward")


@pytest.fixture(autouse=True)
def matmuls_that_take_30_ms(monkeypatch):
    """Other operators take 10 us of the device, and all of them 1 us of the host."""
    for name in ("seconds", "host_seconds", "compute", "has_barrier", "is_lazy", "refused", "limit"):
        monkeypatch.setattr(sim, name, getattr(sim, name))
    sim.seconds, sim.host_seconds = lambda operator: 0.030 if operator in MATMULS else 1e-5, 1e-6


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run a script on a small model: (script, **settings) -> its rows."""
    monkeypatch.setattr(canary, "GPU_SIDE", 16)
    monkeypatch.setattr(cli, "end_with_parent", lambda: None)
    monkeypatch.setattr(cli, "run_process", lambda command, environ, *rest, **others: start(command[1], environ))

    def start(script, environ):
        with patch.dict(os.environ, environ, clear=True), patch.object(sys, "argv", [script]):
            with pytest.raises(SystemExit) as ended:
                runpy.run_path(script, run_name="__main__")
            return ended.value.code

    def call(script="mlp", **settings):
        defaults = {"RUNS": "1", "MAX_SECONDS": "1", "MACHINE": "sim"} | SMALL[script]
        start(f"{script}_benchmark.py", os.environ | defaults | settings)
        with open(tmp_path / "results" / "sim.csv", newline="") as lines:
            rows = list(csv.DictReader(lines))
        assert {row["device"] for row in rows} == {"sim"}
        return rows

    return call


def truth_of(script, phase, steps=12, **settings):
    """Return the seconds of one step, by the device: in an endless series, which is neither awaited nor read.

    Of a part of training that others come before, from an idle device on.
    """

    def end_of(count):
        for _ in range(count):
            session.step()
        return max(sim.now, sim.free_at)

    session = open_session(script, phase, **settings)
    if session.prepare:
        session.prepare()
        sim.synchronize()
        seconds = -sim.now + end_of(1)
    else:
        seconds = (-end_of(steps) + end_of(steps)) / steps
    session.close()
    return seconds


def ratio_of(row, seconds):
    """Return measured / true rate, and print a line of the table in docs/method-details.md."""
    items = int(row["items"]) / int(row["windows"]) / int(row["steps_per_window"])
    ratio = float(row["throughput"]) * seconds / items
    print(f"| {row['model']} {row['phase']} {row['scope']} | {items / seconds:.5g} | {ratio:.4f} | {row['flags']} |")
    return ratio


# Rates


@pytest.mark.parametrize(
    ("device", "host"), [(None, 1e-6), (1e-3, 1e-6), (1e-4, 2e-3), (1e-3, 1e-3)], ids=["matmuls", "even", "host", "both"]
)
def test_rates_of_inference_and_of_training_and_its_parts_are_true(run, device, host):
    usual = sim.seconds
    sim.seconds, sim.host_seconds = lambda operator: device or usual(operator), host
    for row in run(PHASE="inference,training"):
        ratio = ratio_of(row, truth_of("mlp", row["phase"]))
        if "barrier_shows" in row["flags"]:
            assert row["phase"] in ("backward", "optimizer")
        else:  # a read is an operator, and a window lasts as long as a hundred of them
            assert ratio == pytest.approx(1, abs=0.012)


def test_an_inference_of_three_operators_takes_as_long_as_they_do():
    assert truth_of("mlp", "inference") == pytest.approx(2 * 0.030 + 1e-5)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_rates_of_a_decoder_are_true(run, phase):
    (row,) = run("llm", PHASE=phase)
    assert ratio_of(row, truth_of("llm", phase, PHASE=phase)) == pytest.approx(1, abs=0.01)


def test_slow_steps_show_in_the_95th_percentile_and_in_the_mean(run):
    calls = []

    def slow_in_one_of_twelve_steps(operator):
        calls.extend([operator] * (operator == "addmm"))  # two in each step
        return 0.3 if operator == "addmm" and len(calls) % 24 == 0 else 0.03

    sim.seconds = slow_in_one_of_twelve_steps
    (row,) = run(NUM_IMAGES=str(8 * 120))
    assert ratio_of(row, 0.09 + 0.27 / 12) == pytest.approx(1, abs=0.02)
