"""What is said of a GPU that is not there: see alias_device.py. A real GPU runs test_torch.py itself."""

import pytest

from bench.frameworks import on_torch
from bench.settings import read_settings
from tests.frameworks import alias_device


@pytest.mark.parametrize(("device", "name"), [("cuda", "NVIDIA Alias"), ("mps", None)])
def test_the_device_is_described(monkeypatch, device, name):
    alias_device.pretend(monkeypatch, device)
    found = on_torch.find_device(read_settings("mlp", {}))
    assert found == on_torch.find_device(read_settings("mlp", {"USE_GPU": "1"}))
    assert (found.device, found.device_name) == (device, name)
    assert on_torch.find_device(read_settings("mlp", {"USE_GPU": "0"})).device == "cpu"


@pytest.mark.parametrize(("capability", "expected"), [((7, 5), True), ((8, 0), False)])
def test_a_card_that_emulates_bfloat16_is_known(monkeypatch, capability, expected):
    alias_device.pretend(monkeypatch, "cuda", capability)
    assert on_torch.find_device(read_settings("llm", {})).emulates_bfloat16 == expected
