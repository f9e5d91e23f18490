"""A GPU that is not there: only find_device() sees it. Work runs on the device of known_device.py."""

from types import SimpleNamespace

import torch

from bench.frameworks import on_torch


def pretend(monkeypatch, name, capability=(9, 0), **properties):
    """Let on_torch find a GPU called cuda, mps or xpu; return the fractions of its memory that PyTorch may take."""
    fractions = []
    monkeypatch.setattr(on_torch, "choose_device", lambda use_gpu: "cpu" if use_gpu is False else name)
    module = SimpleNamespace(get_device_name=lambda: "NVIDIA Alias", device_count=lambda: 1)
    module.get_device_properties = lambda: SimpleNamespace(**properties)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.mps, "set_per_process_memory_fraction", fractions.append)
    return fractions
