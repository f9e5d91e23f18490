"""A card made of software: PyTorch's CUDA build runs on it without a GPU. Not for timing; no row of it is a result.

PyTorch's allocator, streams, autocast and optimizers are the real ones. card.c stands for CUDA's libraries, and here
each operator is computed on the CPU, in the card's memory. It is strict: operands of two devices are refused, except
single numbers, and nothing has ended before the host waits for it. Each kernel takes a known time, and
time.perf_counter is the clock of card.c: what is measured can be compared with the truth.

    python -m tests.card.card FILE      runs the tests of a file on it, in the environment of machines.build()
"""

import ctypes
import sys
import time
from typing import ClassVar

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

CPU = torch.device("cpu")
CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
COPIES = ("copy_", "_to_copy")  # between devices: PyTorch's own code calls the library
# What needs no kernel, besides views.
PLAIN = ("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "set_", "resize_", "record_stream")
PLAIN += ("is_pinned", "_pin_memory", "is_same_size", "lift_fresh", "_local_scalar_dense")
library = ctypes.CDLL(None)
library.card_now.restype = ctypes.c_double
library.card_launch.argtypes = ctypes.c_double, ctypes.c_double


def on_cpu(tensor):
    """Return a tensor of the CPU in the memory of one of the card."""
    memory = tensor.untyped_storage()
    if not memory.nbytes():
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    storage = torch._C._construct_storage_from_data_pointer(memory.data_ptr(), CPU, memory.nbytes())
    return torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


class Kernels(TorchDispatchMode):
    """Computes the operators whose operands are on the card, in a time that tests change."""

    seconds_of: ClassVar = {}  # of the card, by the name of an operator, such as "addmm"
    seconds = 0.001  # for those without a time of their own
    host_seconds = 1e-6  # for each operator

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        options = options or {}
        leaves, tree = pytree.tree_flatten((arguments, options))
        tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
        devices = [each for each in leaves if isinstance(each, torch.device)] + [each.device for each in tensors]
        device = next((each for each in devices if each.type == "cuda"), CPU)
        name = operator._schema.name.removeprefix("aten::")
        is_view = any(each.alias_info and not each.alias_info.is_write for each in operator._schema.returns)
        if device != CPU and torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), COMPOSITE):
            with self:
                return operator.decompose(*arguments, **options)
        if device != CPU and name in COPIES and CPU in devices:
            with self:
                return operator.redispatch(CUDA, *arguments, **options)
        if device == CPU or is_view or name in PLAIN:
            return operator(*arguments, **options)
        if wrong := {str(each.device) for each in tensors if each.ndim and each.device != device}:
            raise RuntimeError(f"Expected all tensors to be on the same device: {name} got {device} and {wrong}")
        held = {}

        def to_cpu(x):
            if isinstance(x, torch.Tensor) and x.is_cuda:
                alias = on_cpu(x)
                held[id(alias)] = x, alias
                return alias
            return CPU if isinstance(x, torch.device) else None if isinstance(x, torch.Generator) else x

        def to_card(x):
            if not isinstance(x, torch.Tensor) or id(x) in held:
                return held.get(id(x), [x])[0]
            made = torch.empty_like(x, device=device)
            on_cpu(made).copy_(x)
            return made

        arguments, options = pytree.tree_unflatten([to_cpu(each) for each in leaves], tree)
        result = operator(*arguments, **options)
        library.card_launch(self.seconds_of.get(name, self.seconds), self.host_seconds)
        if isinstance(result, (bool, int, float)):
            torch.cuda.synchronize()  # the host waits for a number
        return pytree.tree_map(to_card, result)


def plug_in():
    """Give this process a card, and compute what its main thread does with it."""
    library.card_add(b"NVIDIA GeForce RTX 4090", ctypes.c_long(24564), 8, 9)  # MiB; compute capability
    torch.backends.cudnn.enabled = False  # its operators are not the CPU's
    for name in ("flash", "mem_efficient", "cudnn"):
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(False)
    torch.cuda.get_rng_state = lambda device=None: torch.get_rng_state()  # the CPU draws the numbers of dropout
    torch.cuda.set_rng_state = lambda state, device=None: torch.set_rng_state(state)
    time.perf_counter = library.card_now
    Kernels().__enter__()


if __name__ == "__main__":
    import pytest

    from tests.card import card  # this file, under the name that its tests import

    card.plug_in()
    sys.exit(pytest.main(["-p", "no:cacheprovider", "-c", "pyproject.toml", *sys.argv[1:]]))
