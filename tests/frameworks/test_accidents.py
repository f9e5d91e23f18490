"""What really goes wrong in benchmarks, planted in PyTorch, and the check that refuses it; reports name the threads.

A CPU is the device and the reference: what is planted lasts while oneDNN is on, so that only the device is wrong.
"""

import functools
from contextlib import nullcontext

import pytest
import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from bench import precision
from bench.frameworks.pytorch import on_torch, on_torch_images, on_torch_llm
from bench.timing import MeasurementError
from tests.frameworks.sessions import Opener, measure_and_check

open_session = functools.partial(Opener("torch"), USE_GPU="0")
BATCH_OF_12 = {"MODEL": "mlp-64-64-64", "BATCH_SIZE": "12"}


class Scaled(torch.autograd.Function):
    """Leave a value as it is, and multiply its gradient."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.factor * gradient, None


CASES = {  # (operator, change, script and phase, settings, words of the refusal)
    "honest": ("linear", lambda y: y, "mlp inference", {}, ""),
    "honest training": ("linear", lambda y: y, "image training", {}, ""),
    # tensorflow#1299, Theano#3971; mlx#665, #3480; pytorch#97239, #116769
    "more than 8 items": ("linear", lambda y: 1.7 * y if len(y) > 8 else y, "mlp inference", BATCH_OF_12, "CPU's"),
    "last rows are zero": ("linear", lambda y: torch.cat([y[:-2], 0 * y[-2:]]), "mlp inference", {}, "too small"),
    "not finite": ("linear", lambda y: torch.cat([y[:-2], y[-2:] / 0]), "mlp inference", {}, "infinities"),
    "inverted logits": ("linear", lambda y: -y, "llm prefill", {}, "CPU's"),
    "fused with relu": ("relu", lambda y: y - 0.5, "mlp inference", {}, "CPU's"),
    "channels_last": ("conv2d", lambda y: y.flip(1), "image inference", {"MEMORY_FORMAT": "channels_last"}, "CPU's"),
    # Gradients of another norm
    "a quarter of a gradient": ("linear", lambda y: Scaled.apply(y, 0.25), "mlp training", BATCH_OF_12, "gradient"),
    "in a part of training": ("linear", lambda y: Scaled.apply(y, 5.0), "mlp backward", BATCH_OF_12, "gradient"),
    "of BatchNorm": ("batch_norm", lambda y: Scaled.apply(y, 1.3), "image training", {}, "gradient"),
}


def refuses(session, words, status="wrong_output"):
    """Measure a session that must be refused; "" if it must not."""
    with pytest.raises(MeasurementError, match=words) if words else nullcontext() as error:
        measure_and_check(session)
    assert not words or error.value.status == status


@pytest.mark.parametrize("name", CASES)
def test_wrong_operators_are_refused(monkeypatch, name):
    operator, change, work, environ, words = CASES[name]
    script, phase = work.split()
    settings = open_session.func.settings(script, PHASE=phase, **environ, USE_GPU="0")
    precision.check_precision(on_torch.DeviceContext(settings), has_convolutions=True)  # before its operators are wrong
    # PyTorch turns oneDNN off, for the rest of the process, on a CPU where it cannot compute bfloat16.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)
    usual = getattr(functional, operator)

    def compute(*given, **options):
        result = usual(*given, **options)
        return change(result) if torch.backends.mkldnn.enabled else result

    monkeypatch.setattr(functional, operator, compute)
    refuses(open_session(script, phase, **environ), words)


def test_a_compiled_model_that_computes_something_else_is_refused(monkeypatch):
    """pytorch#185702, #96728: Inductor on CPUs."""
    monkeypatch.setattr(on_torch.DeviceContext, "trace_count", lambda self: 1)
    monkeypatch.setattr(torch, "compile", lambda module, **how: lambda *inputs: module(*inputs) + 0.2)
    refuses(open_session("mlp", "inference", COMPILE="1"), "CPU's")


def test_a_precision_that_is_switched_after_the_model_was_built_is_refused(monkeypatch):
    """cellpose#1253: an import switches TF32 on."""
    session = open_session("mlp", "inference")
    monkeypatch.setattr("bench.precision._probed", {})
    usual = torch.matmul
    monkeypatch.setattr(torch, "matmul", lambda a, b: usual(a.bfloat16(), b.bfloat16()).float())
    refuses(session, "float32 matmul in bfloat16", "unsupported")


def test_a_cache_that_stays_where_it_is_is_refused(monkeypatch):
    """transformers#30351, !29114: the static cache is locked, or its counter stays."""
    usual = on_torch_llm.CachedModel.infer

    def infer(model, place, tokens):
        kept = [(layer.keys.clone(), layer.values.clone()) for layer in model.cache.layers]
        logits = usual(model, place, tokens)
        for layer, (keys, values) in zip(model.cache.layers, kept, strict=True):
            layer.keys.copy_(keys)
            layer.values.copy_(values)
        return logits

    monkeypatch.setattr(on_torch_llm.CachedModel, "infer", torch.inference_mode()(infer))
    refuses(open_session("llm", "decode", NEW_TOKENS="30"), "CPU's")


# Training


def test_a_frozen_model_is_refused(monkeypatch):
    """mlx-examples!940: LoRA trains 0.000 % of the parameters."""
    monkeypatch.setitem(on_torch.BUILDERS, "mlp", lambda workload: on_torch.build_mlp(workload).requires_grad_(False))
    with pytest.raises(MeasurementError, match="trainable parameters") as error:
        open_session("mlp", "inference")
    assert error.value.status == "wrong_model"


@pytest.mark.parametrize(
    ("script", "environ", "is_still"),
    [
        ("mlp", BATCH_OF_12, lambda name: name == "2.weight"),  # pytorch's addcmul_ on Macs: one matrix of four
        ("mlp", BATCH_OF_12 | {"PRECISION": "bfloat16"}, lambda name: True),
        ("llm", {"LORA_RANK": "4", "PRECISION": "bfloat16"}, lambda name: "lora_b" in name),  # ai-toolkit#1054, lora#26
    ],
)
def test_an_optimizer_that_leaves_weights_where_they_were_is_refused(monkeypatch, script, environ, is_still):
    usual = on_torch.Model.update

    def update(model):
        before = {name: each.detach().clone() for name, each in model.trained_weights().items() if is_still(name)}
        moved = usual(model)
        with torch.no_grad():
            for name, each in before.items():
                model.trained_weights()[name].copy_(each)
        return moved

    monkeypatch.setattr(on_torch.Model, "update", update)
    refuses(open_session(script, "training", **environ), "move", "work_skipped")


@pytest.mark.parametrize("scope", ["input", "end_to_end"])
def test_a_pipeline_of_equal_pictures_is_refused(monkeypatch, scope):
    """pytorch#5059."""

    def load(*given, **options):
        return ((images[:1].expand_as(images), labels) for images, labels in iter(DataLoader(*given, **options)))

    monkeypatch.setattr(on_torch_images, "DataLoader", load)
    refuses(open_session("image", "training", scope, NUM_WORKERS="0", BATCH_SIZE="4"), "pictures")
