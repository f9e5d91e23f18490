"""What a GPU needs of PyTorch's sessions, proved on the CPU: nothing waits, short numbers are known and compared."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.frameworks import base
from bench.timing import measure
from tests.frameworks.sessions import Opener

open_session = Opener("torch")


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


@pytest.mark.parametrize(("wrong", "said"), [(torch.Tensor.double, "float64"), (torch.Tensor.item, "reads a value")])
def test_the_watch_sees_what_it_is_there_for(wrong, said):
    with pytest.raises(AssertionError, match=said), Watch():
        wrong(torch.ones(1))


@pytest.mark.parametrize(
    ("script", "phase", "optimizer", "precision"),
    [
        ("image", "inference", "sgd", "float32"),
        ("mlp", "training", "sgd", "mixed_bfloat16"),
        ("mlp", "training", "adam", "mixed_float16"),
        ("diffusion", "training", "adamw", "bfloat16"),
        ("transformer", "training", "adam", "float32"),
        ("llm", "training", "adamw", "bfloat16"),
        ("llm", "prefill", "adamw", "bfloat16"),
        ("llm", "decode", "adamw", "bfloat16"),
    ],
)
def test_a_step_waits_for_nothing_and_makes_no_float64(script, phase, optimizer, precision):
    asked = {"PHASE": phase} if script == "llm" else {}
    session = open_session(script, phase, PRECISION=precision, OPTIMIZER=optimizer, **asked)
    session.step()  # creates the optimizer's state
    with Watch():
        session.step()


def test_the_peak_memory_is_that_of_the_session_after_its_first_step(monkeypatch):
    session, counters = open_session("mlp"), {"memory_allocated": 600, "max_memory_allocated": 1000}
    monkeypatch.setattr(session.context, "memory", counters.get)
    session.context.used_before = 100
    assert session.context.peak_memory_bytes() == 900


@pytest.mark.parametrize(("script", "precision"), [("mlp", "float16"), ("image", "mixed_bfloat16")])
def test_a_device_that_corrupts_a_weight_gives_a_wrong_output(monkeypatch, script, precision):
    open_session(script, PRECISION=precision)
    module_to = torch.nn.Module.to

    def to(module, *where, **how):
        moved = module_to(module, *where, **how)
        list(moved.parameters())[-2].data.mul_(2)
        return moved

    monkeypatch.setattr(torch.nn.Module, "to", to)
    with pytest.raises(measure.MeasurementError, match="differs from the CPU's") as caught:
        open_session(script, PRECISION=precision)
    assert caught.value.status == "wrong_output"


def in_11_bits(tensor):
    mantissa, exponent = torch.frexp(tensor)
    return torch.ldexp((mantissa * 2**11).round() / 2**11, exponent)


def test_a_device_that_computes_float32_with_11_bits_is_named_tf32(monkeypatch):
    """Test with a matmul as an M5 may compute it."""
    monkeypatch.setattr(base, "_probed", {})
    matmul = torch.matmul
    monkeypatch.setattr(torch, "matmul", lambda left, right: matmul(in_11_bits(left), in_11_bits(right)))
    assert open_session("mlp", "inference").measured_precision == "tf32"
    assert open_session("image", "inference").measured_precision == "matmul tf32, convolution float32"
