"""Tiny language models, and what PyTorch computes, for the tests of every framework."""

import functools
import os
import subprocess
import sys
from queue import SimpleQueue
from unittest.mock import patch

import numpy as np
import pytest

from bench import child, process
from bench.frameworks import FOLDERS
from bench.settings import USED_WITH, read_runs
from llm_benchmark import DECODERS
from tests.conftest import TESTED
from tests.fakes import measure_of_command, workload_of_command
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
        monkeypatch.setattr(f"bench.frameworks.{FOLDERS[TESTED]}.on_{TESTED}_llm.POOL_VALUES", 2**18)


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
def run_in_process(monkeypatch):
    """Return a function that measures as children do: (script, **settings) -> the lines of a small model."""
    from tests.frameworks.sessions import SMALL

    def call(name, **settings):
        phases = {*settings.setdefault("PHASE", "inference").split(",")}
        uses = {each: {*USED_WITH.get(each.lower(), ("phase", phases))[1]} for each in SMALL[name]}
        small = {each: text for each, text in SMALL[name].items() if phases & uses[each]}
        lines, requests = {}, SimpleQueue()
        write = lambda line: lines.update({(line["phase"], line["scope"]): line})  # noqa: E731
        monkeypatch.setattr(process, "open_channel", lambda: (write, requests))
        for run in read_runs(name, os.environ | {"MAX_SECONDS": "1"} | small | settings):
            requests.put({"seconds": 1})
            requests.put({"check": True})
            with patch.dict(os.environ, run.environ):
                make_workload = functools.partial(workload_of_command, name)
                assert child.main(name, make_workload, measure_of_command(name)) == 0
        return list(lines.values())

    return call
