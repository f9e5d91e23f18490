"""What is special to JAX."""

from types import SimpleNamespace

import jax
import pytest

from bench.frameworks import on_jax
from bench.settings import read_settings
from bench.timing import MeasurementError
from tests.frameworks.sessions import Opener

open_session = Opener("jax")


def test_a_row_says_that_it_is_compiled():
    for compile in ({}, {"COMPILE": "0"}):
        assert read_settings("image", {"FRAMEWORK": "jax"} | compile).compile == "1"
    assert read_settings("tflops", {"FRAMEWORK": "jax"}).compile is None


class WrongCompiler:
    """JAX whose compiled functions are wrong by 2 %."""

    def __getattr__(self, name):
        return getattr(jax, name)

    def jit(self, work, **options):
        return jax.jit(lambda *batch: jax.tree.map(lambda each: each * 1.02, work(*batch)), **options)


def test_a_wrong_compiled_model_is_refused(monkeypatch):
    monkeypatch.setattr(on_jax, "jax", WrongCompiler())
    with pytest.raises(MeasurementError, match="differs from the CPU's") as caught:
        open_session("mlp", "inference")
    assert caught.value.status == "wrong_output"


def test_synchronize_waits_for_all_that_was_submitted():
    session = open_session("mlp", MODEL="mlp-500", BATCH_SIZE="64")
    for _ in range(4):
        session.step()
    session.synchronize()
    assert all(array.is_ready() for array in jax.live_arrays())
    assert session.updates() == 4


def test_the_peak_memory_of_a_gpu_is_known_if_it_rises():
    stats = {"bytes_in_use": 100, "peak_bytes_in_use": 400}
    gpu = SimpleNamespace(platform="gpu", memory_stats=lambda: stats)
    context = object.__new__(on_jax.DeviceContext)
    context.place = gpu
    context.used_before, context.peak_before = context._read_memory()
    assert context.peak_memory_bytes() is None
    stats["peak_bytes_in_use"] = 1000
    assert context.peak_memory_bytes() == 900
