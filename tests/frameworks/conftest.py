"""Tiny language models, and what PyTorch computes, for the tests of every framework."""

import csv
import functools
import importlib
import json
import math
import os
import subprocess
import sys
from queue import SimpleQueue
from unittest.mock import patch

import numpy as np
import pytest

from bench import process
from bench.frameworks import FOLDERS
from bench.host import meters
from bench.settings import USED_WITH
from llm_benchmark import DECODERS
from tests.conftest import TESTED
from tests.fakes import FakeChild
from tests.frameworks.torch_reference import TINY_DECODERS

if TESTED == "jax":  # most of its tests' time is the compilation of the same functions
    import jax

    jax.config.update("jax_compilation_cache_dir", ".pytest_cache/jax")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


@pytest.fixture(autouse=True)
def tiny_decoders(monkeypatch):
    """Add the tiny decoders to the models of llm_benchmark.py."""
    for name, decoder in TINY_DECODERS.items():
        monkeypatch.setitem(DECODERS, name, decoder)
    if TESTED in ("torch", "mlx"):
        monkeypatch.setattr(f"bench.frameworks.{FOLDERS[TESTED]}.on_{TESTED}_llm.POOL_NUMBERS", 2**18)


@pytest.fixture(scope="module")
def reference(request, tmp_path_factory):
    """Run torch_reference.py for the models in COMPARED; returns the function that reads what it wrote for a model."""
    folder = tmp_path_factory.mktemp("torch")
    python = os.environ.get("TORCH_PYTHON", sys.executable)
    command = [python, "-m", "tests.frameworks.torch_reference", folder, *request.module.COMPARED]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return lambda model: dict(np.load(folder / f"{model}.npz"))


@pytest.fixture
def run_in_process(monkeypatch, tmp_path):
    """Run a script of PyTorch on a small model, its child in this process: (its name, **settings) -> its rows."""
    from tests.frameworks.sessions import SMALL

    monkeypatch.setattr(meters, "others_cpu_seconds", lambda: math.nan)

    def call(name, **settings):
        script = importlib.import_module(f"{name}_benchmark")

        def start(environ):
            with patch.dict(os.environ, environ):
                return script.benchmark(name, getattr(script, f"{name}_workload"))

        def work(child):
            requests = SimpleQueue()
            for request in ({"seconds": 1}, {"check": True}):
                requests.put(request)
            write = lambda line: child.lines.append(json.loads(json.dumps(line, default=str)))  # noqa: E731
            monkeypatch.setattr(process, "open_channel", lambda: (write, requests))
            return start(child.environ)
            yield

        monkeypatch.setattr(process, "Child", functools.partial(FakeChild, work))
        phases = {*settings.setdefault("PHASE", "inference").split(",")}
        uses = {each: {*USED_WITH.get(each.lower(), ("phase", phases))[1]} for each in SMALL[name]}
        small = {each: text for each, text in SMALL[name].items() if phases & uses[each]}
        start({"RUNS": "1", "MAX_SECONDS": "1", "MACHINE": "known"} | small | settings)
        with open(tmp_path / "results" / "known.csv", newline="") as lines:
            return list(csv.DictReader(lines))

    return call
