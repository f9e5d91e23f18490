"""Our branches for cuda and mps, walked on the CPU: see alias_device.py. A real GPU runs test_torch.py itself."""

import pytest
import torch

from bench.frameworks import base, on_torch
from bench.settings import read_settings
from bench.timing import measure
from tests.frameworks import alias_device
from tests.frameworks.sessions import Opener

open_session = Opener("torch")


@pytest.fixture(params=["cuda", "mps"])
def gpu(request, monkeypatch):
    """The Allocator of a GPU of that name."""
    return alias_device.pretend(monkeypatch, request.param)


def test_a_session_runs_on_the_gpu_and_counts_its_memory(gpu):
    found = on_torch.find_device(read_settings("mlp", {}))
    assert found.has_own_memory == (found.device == "cuda")
    session = open_session("mlp")
    gpu.allocate(1000)  # by the first step
    session.step()
    gpu.allocate(-400)
    session.after_first_step()
    before = gpu.synchronized
    session.synchronize()
    assert gpu.synchronized == before + 1
    first = session.read()
    session.step()
    assert session.read() != first
    assert session.context.peak_memory_bytes() == 600


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
def test_a_step_waits_for_nothing_and_makes_no_float64(gpu, script, phase, optimizer, precision):
    asked = {"PHASE": phase} if script == "llm" else {}
    session = open_session(script, phase, PRECISION=precision, OPTIMIZER=optimizer, **asked)
    session.step()  # creates the optimizer's state
    with alias_device.Watch():
        session.step()


@pytest.mark.parametrize(("wrong", "said"), [(torch.Tensor.double, "float64"), (torch.Tensor.item, "reads a value")])
def test_the_watch_sees_what_it_is_there_for(wrong, said):
    with pytest.raises(AssertionError, match=said), alias_device.Watch():
        wrong(torch.ones(1))


# Proofs


@pytest.mark.parametrize(
    ("device", "script", "factor", "environ"),
    [
        ("cuda", "image", 1.05, {}),
        ("mps", "mlp", 2, {"PRECISION": "float16"}),
        ("mps", "mlp", 2, {"PRECISION": "mixed_bfloat16", "USE_GPU": "0"}),
    ],
)
def test_a_device_that_corrupts_a_weight_gives_a_wrong_output(monkeypatch, device, script, factor, environ):
    alias_device.pretend(monkeypatch, device)
    open_session(script, **environ)
    module_to = torch.nn.Module.to

    def to(module, *where, **how):
        moved = module_to(module, *where, **how)
        list(moved.parameters())[-2].data.mul_(factor)
        return moved

    monkeypatch.setattr(torch.nn.Module, "to", to)
    with pytest.raises(measure.MeasurementError, match="differs from the CPU's") as caught:
        open_session(script, **environ)
    assert caught.value.status == "wrong_output"


def in_11_bits(tensor):
    mantissa, exponent = torch.frexp(tensor)
    return torch.ldexp((mantissa * 2**11).round() / 2**11, exponent)


def test_a_gpu_that_computes_float32_with_11_bits_is_named_tf32(monkeypatch):
    """Test with a matmul as an M5 may compute it."""
    monkeypatch.setattr(base, "_probed", {})
    alias_device.pretend(monkeypatch, "mps")
    matmul = torch.matmul
    monkeypatch.setattr(torch, "matmul", lambda left, right: matmul(in_11_bits(left), in_11_bits(right)))
    assert open_session("mlp", "inference").measured_precision == "tf32"
    assert open_session("image", "inference").measured_precision == "matmul tf32, convolution float32"
