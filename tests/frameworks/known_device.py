"""A device whose speed is known: PyTorch's own device type "sim", written in Python; the scripts run on it unchanged.

Its tensors hold CPU tensors, and its operators compute what the CPU computes. Each takes the device a known time, and
the host goes on at once, as with a GPU: synchronize() and whatever reads a value wait until the device is free. What
the program leaves on the CPU is an error here too, because operands of two devices are refused.

Limits: no kernels of its own, one queue, no second device, no memory, no compiler, no autocast. Of the CPU's tensors
only single numbers are accepted. Views and empty tensors take no time.
A device type lasts for the life of a process and is found before CUDA, so use it only in a process of its own:

    python -m tests.frameworks.known_device FILE     runs the tests of a file, with the device's clock as perf_counter
"""

import sys
import time
from typing import Any

import pytest
import torch
from torch.utils import backend_registration

IS_AVAILABLE = torch.__version__ >= "2.15"  # if a later one lacks the private function of register(), tests fail
SIM = "sim:0"


class KnownDevice:
    """The device and its clock. Tests change its attributes; the rest of PyTorch is as usual."""

    def __init__(self):
        self.now = self.free_at = 0.0  # seconds; free_at is when all that was submitted will be done
        self.seconds = lambda operator: 0.001  # of the device for an operator, by its name, such as "addmm"
        self.host_seconds = 0.0  # of the host for each operator
        self.reads = 0  # how often the host has waited for a value

    def synchronize(self):
        """Let the host wait for all that was submitted."""
        self.now = max(self.now, self.free_at)

    def run(self, operator, arguments, options):
        """Run an operator of PyTorch: compute it on the CPU and put its time into the queue."""
        name, tensors = operator._opname, []
        target = options.get("device") or (arguments[0].device if name == "copy_" else SIM)
        arguments, options = to_cpu(arguments, tensors), {key: to_cpu(x, tensors) for key, x in options.items()}
        ours = {id(x.held): x for x in tensors if isinstance(x, SimTensor)}
        if name not in ("copy_", "_to_copy") and any(x.ndim for x in tensors if not isinstance(x, SimTensor)):
            raise RuntimeError(f"Expected all tensors to be on the same device, but {name} got some on sim and on cpu")
        result = operator(*arguments, **options)
        if torch.device(target).type == "cpu" or isinstance(result, (bool, int, float)):
            self.reads += 1
            self.synchronize()
            return result
        if not (operator.is_view or name.startswith("empty")):
            self.now += self.host_seconds
            self.free_at = max(self.free_at, self.now) + self.seconds(name)
        return self.to_sim(result, ours)

    def to_sim(self, x, ours):
        """Return the tensors of the device for those of the CPU, in lists too."""
        if isinstance(x, (list, tuple)):
            return type(x)(self.to_sim(each, ours) for each in x)
        if not isinstance(x, torch.Tensor) or id(x) in ours:
            return ours.get(id(x), x)
        if x.dtype == torch.float64:
            raise TypeError("sim does not have float64, as some GPUs")
        return SimTensor(x)


class SimTensor(torch.Tensor):
    """A tensor on the device; `held` is the CPU tensor that has its numbers."""

    @staticmethod
    def __new__(cls, held):
        layout = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        with torch.inference_mode(held.is_inference()):  # which a view of an older tensor is not
            made = torch.Tensor._make_wrapper_subclass(cls, held.shape, **layout, device=SIM)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, operator, types, arguments=(), options=None):
        return sim.run(operator, arguments, options or {})


def to_cpu(x, tensors):
    """Return the argument of an operator for the CPU; adds the tensors in it to a list."""
    if isinstance(x, (list, tuple)):
        return type(x)(to_cpu(each, tensors) for each in x)
    if isinstance(x, torch.Tensor):
        tensors.append(x)
    if isinstance(x, torch.device):
        return torch.device("cpu")
    return x.held if isinstance(x, SimTensor) else x


sim, libraries = KnownDevice(), []


def register():
    """Make the device this process's accelerator."""
    module: Any = backend_registration._DummyBackendModule()  # torch.sim
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    module.get_device_name = lambda: "a device of known speed"
    backend_registration._setup_privateuseone_for_python_backend("sim", backend_module=module)
    fallbacks = torch.library.Library("_", "IMPL")
    libraries.append(fallbacks)  # which would be undone with it
    fallbacks.fallback(lambda operator, *arguments, **options: sim.run(operator, arguments, options), "PrivateUse1")
    fallbacks.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    # Otherwise module.to() would make new parameters, and weights that a model uses twice would become two.
    torch.__future__.set_swap_module_params_on_conversion(True)
    accelerator = torch.accelerator  # whose functions reach only devices in C++
    accelerator.synchronize, accelerator.empty_cache = sim.synchronize, lambda: None
    accelerator.memory_allocated = accelerator.max_memory_allocated = lambda: 0
    accelerator.reset_peak_memory_stats = lambda: None
    torch.set_num_threads(1)


if __name__ == "__main__":
    from tests.frameworks import known_device  # this file, under the name that its users import

    known_device.register()
    time.perf_counter = lambda: known_device.sim.now
    sys.exit(pytest.main(sys.argv[1:]))
