"""Work of PyTorch that differs from what was checked before it was timed: each cheat is refused, honest work is not."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from bench.frameworks.pytorch import on_torch, on_torch_llm
from bench.timing import MeasurementError, proof
from tests.frameworks.sessions import Opener, measure_and_prove

open_session = Opener("torch")


def refuses(session, match=None, status="wrong_output", **how):
    """Measure a session that must be refused after its windows."""
    with pytest.raises(MeasurementError, match=match) as error:
        measure_and_prove(session, **how)
    assert error.value.status == status


# Inference: (the usual infer(), the number of its call, the model, its inputs) -> the output


def scale_an_old_output():
    kept = []

    def infer(usual, call, model, x):
        kept.extend([] if kept else [usual(model, x)])
        return kept[0] * x.flatten(1)[:, :4].mean(1, keepdim=True)

    return infer


def use_bfloat16_later(usual, call, model, x):
    with torch.autocast("cpu", torch.bfloat16, enabled=call >= 60):
        return usual(model, x).float()


def prune_later(usual, call, model, x):
    if call == 60:
        model.uncompiled[-1].weight.data[:, ::4] = 0
        model.uncompiled[0].bias = torch.nn.Parameter(model.uncompiled[0].bias + 0.1)
    return usual(model, x)


@pytest.mark.parametrize("cheat", [scale_an_old_output(), use_bfloat16_later, prune_later])
def test_inference_that_is_right_only_before_it_is_timed_is_refused(monkeypatch, cheat):
    measure_and_prove(open_session("mlp", "inference", USE_GPU="0"), steps=70)
    usual, calls = on_torch.Model.infer, itertools.count()
    monkeypatch.setattr(on_torch.Model, "infer", lambda model, *inputs: cheat(usual, next(calls), model, *inputs))
    refuses(open_session("mlp", "inference", USE_GPU="0"), steps=70)


# Training


def without_gradient(module, x):
    """Compute four of nine layers without a gradient."""
    layers = list(module)
    with torch.no_grad():
        for layer in layers[:8]:
            x = layer(x)
    return torch.nn.Sequential(*layers[8:])(x)


def test_layers_without_a_gradient_are_refused(monkeypatch):
    environ = {"MODEL": "mlp-8x16", "BATCH_SIZE": "8", "USE_GPU": "0"}
    measure_and_prove(open_session(**environ))
    session = open_session(**environ)
    session.model.module = lambda x: without_gradient(session.model.uncompiled, x)
    refuses(session, "gradient of|moved", status="wrong_output")
    # Only in the timed steps
    session, update = open_session(**environ), on_torch.Model.update

    def update_few(self):
        for weight in self.trained_weights()[:8]:
            weight.grad = None
        update(self)

    monkeypatch.setattr(on_torch.Model, "update", update_few)
    refuses(session, "no gradient of")


@pytest.mark.parametrize(("script", "what"), [("image", "BatchNorm"), ("transformer", "dropout")])
def test_training_as_in_inference_is_refused(script, what):
    session = open_session(script, "training", USE_GPU="0")
    session.model.uncompiled.eval()
    refuses(session, what, status="work_skipped")


# Language models


def test_a_prefill_without_its_context_is_refused(monkeypatch):
    usual = on_torch_llm.CachedModel.extend
    monkeypatch.setattr(on_torch_llm.CachedModel, "extend", lambda model, ids: usual(model, ids[:, -1:]))
    refuses(open_session("llm", "prefill", USE_GPU="0"), "differs from the CPU's")


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_of_sequences_that_are_too_long_for_the_reference_a_few_tokens_are_compared(monkeypatch, phase):
    monkeypatch.setattr("bench.timing.proof.MAX_REFERENCE_FLOPS", 0)
    session = open_session("llm", phase, PROMPT_TOKENS="30", USE_GPU="0")
    measure_and_prove(session)
    assert session.proof.output_error < session.proof.output_limit
    assert "8 tokens" in session.proof.note


def test_a_decode_that_does_not_fill_its_cache_is_refused(monkeypatch):
    usual = on_torch_llm.CachedModel.extend

    def extend(model, tokens):
        kept = [(layer.keys.clone(), layer.values.clone()) for layer in model.cache.layers]
        logits = usual(model, tokens)
        for layer, (keys, values) in zip(model.cache.layers, kept, strict=True):
            layer.keys.copy_(keys)
            layer.values.copy_(values)
        return logits

    monkeypatch.setattr(on_torch_llm.CachedModel, "extend", torch.inference_mode()(extend))
    refuses(open_session("llm", "decode", USE_GPU="0"), "differs from the CPU's")


# Several processes


@pytest.mark.parametrize("phase", ["inference", "training"])
def test_later_processes_have_the_numbers_of_the_first_one(monkeypatch, tmp_path, phase):
    path = str(tmp_path / "numbers")
    sessions = [open_session("mlp", phase, compares=first, path=path, USE_GPU="0") for first in (True, False)]
    for session in sessions:
        measure_and_prove(session)
    assert [session.proof.output_error is None for session in sessions] == [False, True]
    usual = functional.linear
    monkeypatch.setattr(functional, "linear", lambda x, weight, bias=None: usual(x, weight, bias) * 1.01)
    refuses(open_session("mlp", phase, compares=False, path=path, USE_GPU="0"), "first process")


@pytest.mark.parametrize("are_many", [True, False])
def test_ranks_that_compare_nothing_evaluate_with_the_one_that_does_but_a_later_process_does_not(monkeypatch, are_many):
    monkeypatch.setattr(proof.ranks, "read_ranks", lambda: SimpleNamespace(are_many=are_many))
    session = open_session("mlp", "training", compares=False, USE_GPU="0")
    usual, calls = session.model.evaluate, []
    session.model.evaluate = lambda *about: calls.append(about) or usual(*about)
    measure_and_prove(session)
    assert len(calls) == are_many


def test_a_process_after_one_that_was_killed_in_its_comparison_compares_nothing(tmp_path):
    path = tmp_path / "numbers"
    path.write_text("{}")
    session = open_session("mlp", "inference", compares=False, path=str(path), USE_GPU="0")
    measure_and_prove(session)
    assert "killed" in session.proof.note


def test_without_memory_a_compiled_model_is_compared_with_itself(monkeypatch):
    monkeypatch.setattr("bench.timing.proof.resources.available_bytes", lambda: 0)
    monkeypatch.setattr(on_torch.DeviceContext, "trace_count", lambda self: 1)
    factor = 1
    monkeypatch.setattr(torch, "compile", lambda module, **how: lambda *inputs: factor * module(*inputs))
    session = open_session("mlp", "inference", COMPILE="1", USE_GPU="0")
    measure_and_prove(session)
    assert ("memory" in session.proof.note, session.proof.output_error) == (True, None)
    factor = 1.5
    refuses(open_session("mlp", "inference", COMPILE="1", USE_GPU="0"), "compiled")
