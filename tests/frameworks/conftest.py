"""ALIAS_DEVICE=cuda FRAMEWORK=torch pytest tests/frameworks: the same tests on a GPU that is not there."""

import os

import pytest

from tests.conftest import TESTED

if TESTED == "jax":  # most of its tests' time is the compilation of the same functions
    import jax

    jax.config.update("jax_compilation_cache_dir", ".pytest_cache/jax")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


@pytest.fixture(autouse=True)
def alias(monkeypatch):
    if name := os.environ.get("ALIAS_DEVICE"):
        from tests.frameworks import alias_device

        alias_device.pretend(monkeypatch, name)
