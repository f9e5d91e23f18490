"""What is said of a GPU that is not there: only find_device() sees it. A real GPU runs test_torch.py itself."""

from types import SimpleNamespace

import pytest
import torch

from bench.frameworks.pytorch import on_torch
from bench.settings import read_settings
from tests.frameworks.sessions import Opener

open_session = Opener("torch")
WATERMARK = "PYTORCH_MPS_HIGH_WATERMARK_RATIO"
MEMORY = {"memory_clock_rate": 10_501_000, "memory_bus_width": 384}  # of an RTX 4090


def pretend(monkeypatch, name, capability=(9, 0), **properties):
    """Let on_torch find a GPU called cuda or mps; return the fractions of its memory that PyTorch may take."""
    fractions = []
    monkeypatch.setattr(on_torch, "choose_device", lambda use_gpu: "cpu" if use_gpu is False else name)
    module = SimpleNamespace(get_device_name=lambda: "NVIDIA Alias", device_count=lambda: 1)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: SimpleNamespace(**properties))
    monkeypatch.setattr(torch.mps, "set_per_process_memory_fraction", fractions.append)
    return fractions


@pytest.mark.parametrize(("gib", "environ", "fractions"), [(16, {}, [1]), (32, {}, []), (16, {WATERMARK: "0"}, [])])
def test_a_small_mac_runs_out_of_memory_instead_of_swapping(monkeypatch, gib, environ, fractions):
    asked = pretend(monkeypatch, "mps")
    monkeypatch.setattr(on_torch, "installed_bytes", lambda: gib * 2**30)
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    on_torch.find_device(read_settings("mlp", {}))
    assert asked == fractions


@pytest.mark.parametrize(("capability", "expected"), [((7, 5), True), ((8, 0), False)])
def test_a_card_that_emulates_bfloat16_is_known(monkeypatch, capability, expected):
    pretend(monkeypatch, "cuda", capability)
    assert on_torch.find_device(read_settings("llm", {})).emulates_bfloat16 == expected


@pytest.mark.parametrize(("capability", "expected"), [("AVX2", True), ("AVX512", False), ("DEFAULT", False)])
def test_a_cpu_that_emulates_bfloat16_is_known(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert on_torch.find_device(read_settings("mlp", {"USE_GPU": "0"})).emulates_bfloat16 == expected


@pytest.mark.parametrize(
    ("device", "properties", "is_integrated", "rated_bandwidth"),
    [
        ("cuda", {"is_integrated": 0} | MEMORY, False, 1008.096),
        ("cuda", {"is_integrated": 0} | MEMORY | {"memory_clock_rate": 0}, False, None),
        ("cuda", {"is_integrated": 1} | MEMORY, True, None),
        ("mps", {}, None, None),
    ],
)
def test_the_memory_of_a_gpu_is_known(monkeypatch, device, properties, is_integrated, rated_bandwidth):
    pretend(monkeypatch, device, **properties)
    found = on_torch.find_device(read_settings("llm", {}))
    assert (found.is_integrated, found.rated_bandwidth) == (is_integrated, rated_bandwidth)
    assert (found.type, found.device_name) == (device, "NVIDIA Alias" if device == "cuda" else None)
    assert on_torch.find_device(read_settings("mlp", {"USE_GPU": "0"})).type == "cpu"
