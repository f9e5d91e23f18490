"""A step does all of its work, on a whole batch, and a compiled one is compiled."""

import pytest
import torch

from bench.timing import measure
from tests.frameworks.sessions import Opener

open_session = Opener("torch")


def record_calls(monkeypatch, thing, name):
    """Return the list to which the arguments and result of every later call of thing.name() are added."""
    calls, function = [], getattr(thing, name)

    def call(*arguments):
        result = function(*arguments)
        calls.append((*arguments, result))
        return result

    monkeypatch.setattr(thing, name, call)
    return calls


def test_a_step_of_inference_computes_one_whole_batch_and_the_next_one_another(monkeypatch):
    session = open_session("mlp", "inference")
    calls = record_calls(monkeypatch, session.model, "infer")
    for steps in range(1, 5):
        session.step()
        assert len(calls) == steps
        inputs, outputs = calls[-1]
        assert len(inputs) == len(outputs) == 8
        assert session.last_result is outputs
        assert not outputs.requires_grad
    assert len({inputs.data_ptr() for inputs, _ in calls}) == 4
    assert session.checksum() is None


def test_a_step_of_training_runs_each_part_once_and_changes_every_weight(monkeypatch):
    session = open_session("mlp", "training")
    parts = [record_calls(monkeypatch, session.model, part) for part in ("forward", "backward", "update")]
    assert session.model.uncompiled.training
    sums = {session.checksum()}
    for steps in range(1, 4):
        before = [weight.clone() for weight in session.model.uncompiled.parameters()]
        session.step()
        assert [len(calls) for calls in parts] == [steps] * 3
        assert session.updates() == steps
        for old, new in zip(before, session.model.uncompiled.parameters(), strict=True):
            assert not torch.equal(old, new)
        sums.add(session.checksum())
    assert len(sums) == 4


def test_a_model_that_the_compiler_skips_is_unsupported(monkeypatch):
    # As Inductor does with bfloat16 on a card without it.
    monkeypatch.setattr(torch, "compile", lambda model, **how: model)
    session = open_session("mlp", "inference", COMPILE="1")
    session.step()
    with pytest.raises(measure.MeasurementError, match="uncompiled") as error:
        session.after_first_step()
    assert error.value.status == "unsupported"
