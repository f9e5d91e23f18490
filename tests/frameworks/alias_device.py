"""A GPU that is not there: PyTorch's own tensors stay on the CPU while our branches see cuda or mps.

It answers in place of torch.accelerator, and of what torch knows about the card. What the framework's own kernels do
on a GPU, no test here can show.
"""

from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.frameworks import on_torch


class AliasDevice(str):
    """Torch's C++ reads the characters, "cpu"; Python's comparisons see the other name."""

    name: str

    def __new__(cls, name):
        made = super().__new__(cls, "cpu")
        made.name = name
        return made

    def __eq__(self, other):
        return self.name == other

    def __ne__(self, other):
        return self.name != other

    def __hash__(self):
        return hash(self.name)

    def __str__(self):
        return self.name

    def __format__(self, spec):
        return format(self.name, spec)


class Allocator:
    """An allocator that only counts."""

    fraction = None  # that may be allocated, of what the system recommends

    def __init__(self):
        self.allocated = self.most_allocated = self.synchronized = 0

    def allocate(self, size):
        self.allocated += size
        self.most_allocated = max(self.most_allocated, self.allocated)

    def free(self, size):
        self.allocated -= size

    def limit(self, fraction):
        self.fraction = fraction

    def empty_cache(self):
        pass

    def reset_peak_memory_stats(self):
        self.most_allocated = self.allocated

    def synchronize(self):
        self.synchronized += 1


def pretend(monkeypatch, name, capability=(9, 0), **properties):
    """Let on_torch see a GPU called cuda or mps; returns its Allocator."""
    device, allocator = AliasDevice(name), Allocator()
    on_cpu, scaler = torch.autocast, torch.amp.GradScaler
    monkeypatch.setattr(on_torch, "choose_device", lambda use_gpu: "cpu" if use_gpu is False else device)
    # These two look at the name in Python, and would look for a real GPU of it.
    monkeypatch.setattr(torch, "autocast", lambda device, kind: on_cpu("cpu", kind))
    monkeypatch.setattr(torch.amp, "GradScaler", lambda device, **how: scaler("cpu", **how))
    for function in ("empty_cache", "reset_peak_memory_stats", "synchronize"):
        monkeypatch.setattr(torch.accelerator, function, getattr(allocator, function))
    monkeypatch.setattr(torch.accelerator, "memory_allocated", lambda: allocator.allocated)
    monkeypatch.setattr(torch.accelerator, "max_memory_allocated", lambda: allocator.most_allocated)
    module, named = torch.get_device_module, SimpleNamespace(get_device_name=lambda: "NVIDIA Alias")
    named.get_device_properties = lambda: SimpleNamespace(**properties)
    monkeypatch.setattr(torch, "get_device_module", lambda of=None: named if of is device else module(of))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.mps, "set_per_process_memory_fraction", allocator.limit)
    return allocator


class Watch(TorchDispatchMode):
    """Fails on what a GPU cannot do, or what would make the host wait for it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            raise AssertionError("a step reads a value back, and waits for the device")
        result = func(*args, **kwargs or {})
        for each in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(each, torch.Tensor) and each.dtype == torch.float64:
                raise AssertionError(f"{func} makes a float64 tensor, which MPS does not have")
        return result
