"""What is special to JAX."""

import jax

from tests.frameworks.sessions import Opener

open_session = Opener("jax")


def test_synchronize_waits_for_all_that_was_submitted():
    session = open_session("mlp", MODEL="mlp-500", BATCH_SIZE="64")
    for _ in range(4):
        session.step()
    session.synchronize()
    assert all(array.is_ready() for array in jax.live_arrays())
