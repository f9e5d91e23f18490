"""What is said of a GPU that is not there: only find_device() sees it. A real GPU runs test_torch.py itself."""

from types import SimpleNamespace

import pytest
import torch

from bench.frameworks.pytorch import on_torch
from bench.settings import read_settings

MEMORY = {"memory_clock_rate": 10_501_000, "memory_bus_width": 384}  # of an RTX 4090


@pytest.mark.parametrize(("gib", "fractions"), [(16, [1]), (32, [])])
def test_a_small_mac_runs_out_of_memory_instead_of_swapping(monkeypatch, gib, fractions):
    asked = []
    monkeypatch.setattr(on_torch, "choose_device", lambda use_gpu: "mps")
    monkeypatch.setattr(torch.mps, "set_per_process_memory_fraction", asked.append)
    monkeypatch.setattr(on_torch, "installed_bytes", lambda: gib * 2**30)
    on_torch.find_device(read_settings("mlp", {}))
    assert asked == fractions


@pytest.mark.parametrize(("capability", "expected"), [("AVX2", True), ("AVX512", False)])
def test_a_cpu_that_emulates_bfloat16_is_known(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert on_torch.find_device(read_settings("mlp", {"USE_GPU": "0"})).emulates_bfloat16 == expected


@pytest.mark.parametrize(
    ("capability", "properties", "expected"),
    [
        ((7, 5), {"is_integrated": 0} | MEMORY, (True, False, 1008.096)),
        ((8, 9), {"is_integrated": 0, "memory_clock_rate": 0, "memory_bus_width": 384}, (False, False, None)),
        ((12, 1), {"is_integrated": 1} | MEMORY, (False, True, None)),
    ],
)
def test_a_card_and_its_memory_are_known(monkeypatch, capability, properties, expected):
    monkeypatch.setattr(on_torch, "choose_device", lambda use_gpu: "cuda")
    module = SimpleNamespace(get_device_name=lambda: "NVIDIA Alias", device_count=lambda: 1)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: SimpleNamespace(**properties))
    found = on_torch.find_device(read_settings("llm", {}))
    assert (found.type, found.device_name) == ("cuda", "NVIDIA Alias")
    assert (found.emulates_bfloat16, found.is_integrated, found.rated_bandwidth) == expected
