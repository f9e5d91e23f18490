"""Tiny language models, and what PyTorch computes, for the tests of every framework."""

import os
import subprocess
import sys

import numpy as np
import pytest

from bench.frameworks import FOLDERS
from llm_benchmark import DECODERS
from tests.conftest import TESTED
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
