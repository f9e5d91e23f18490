"""What is special to JAX."""

from contextlib import nullcontext

import jax
import pytest

from bench.frameworks.keras_jax_tf import on_jax
from bench.host.environment import NvidiaGpu
from bench.process import TAKEN
from bench.settings import SettingError, read_settings
from tests.frameworks.sessions import Opener

open_session = Opener("jax")


def test_synchronize_waits_for_all_that_was_submitted():
    session = open_session("mlp", MODEL="mlp-500", BATCH_SIZE="64")
    for _ in range(4):
        session.step()
    session.synchronize()
    assert all(array.is_ready() for array in jax.live_arrays())


@pytest.mark.parametrize(
    ("environ", "error", "found"),
    [
        *(({}, "No visible GPU", "cpu"), ({"USE_GPU": "1"}, "No visible GPU", "USE_GPU=1"), ({}, TAKEN, "cuda")),
        *(({"JAX_PLATFORMS": "cuda"}, "", "JAX_PLATFORMS='cuda'"), ({"USE_GPU": "1"}, TAKEN, "cuda")),
    ],
)
def test_a_card_that_cannot_be_opened_is_one_line_or_the_cpu_unless_others_have_it(monkeypatch, environ, error, found):
    def open_devices(*names, usual=jax.devices):
        if not names:
            raise RuntimeError(f"Unable to initialize backend 'cuda': {error}")
        return usual(*names)

    monkeypatch.setattr(jax, "devices", open_devices)
    monkeypatch.setattr(jax.extend.backend, "clear_backends", lambda: None)
    monkeypatch.setenv("JAX_PLATFORMS", environ.pop("JAX_PLATFORMS", ""))
    monkeypatch.setenv("NPROC", "auto")  # which XLA ignores
    monkeypatch.setattr(on_jax.environment, "list_cards", lambda: [NvidiaGpu("NVIDIA H200")])
    settings = read_settings("mlp", environ)
    with nullcontext() if found.islower() else pytest.raises(SettingError, match=found):
        device = on_jax.find_device(settings)
        assert (device.type, device.device_name) == (found, "NVIDIA H200" if found == "cuda" else None)
    with pytest.raises(RuntimeError, match=TAKEN) if found == "cuda" else nullcontext():  # its row is a failure
        on_jax.choose_device(settings.use_gpu if found == "cuda" else False)
