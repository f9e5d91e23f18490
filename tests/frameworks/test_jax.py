"""What is special to JAX."""

from types import SimpleNamespace

import jax

from bench.frameworks import on_jax
from tests.frameworks.sessions import Opener

open_session = Opener("jax")


def test_synchronize_waits_for_all_that_was_submitted():
    session = open_session("mlp", MODEL="mlp-500", BATCH_SIZE="64")
    for _ in range(4):
        session.step()
    session.synchronize()
    assert all(array.is_ready() for array in jax.live_arrays())
    assert session.updates() == 4


def test_the_peak_memory_of_a_gpu_is_known_if_it_rises():
    stats = {"bytes_in_use": 100, "peak_bytes_in_use": 400}
    context = object.__new__(on_jax.DeviceContext)
    context.place = SimpleNamespace(memory_stats=lambda: stats)
    context.used_before, context.peak_before = context._read_memory()
    assert context.peak_memory_bytes() is None
    stats["peak_bytes_in_use"] = 1000
    assert context.peak_memory_bytes() == 900
