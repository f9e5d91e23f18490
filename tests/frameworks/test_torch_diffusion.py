"""Diffusion models in PyTorch: three classes of the diffusers library, their counts, and their steps."""

import numpy as np
import pytest
import torch

from bench.frameworks import on_torch, on_torch_llm
from bench.timing import measure
from diffusion_benchmark import DENOISERS
from tests.frameworks import count_flops
from tests.frameworks.sessions import Opener
from tests.frameworks.test_contract import PHASES, compute_wrongly
from tests.frameworks.tiny_denoisers import TINY_DENOISERS

open_session = Opener("torch")


@pytest.fixture(autouse=True)
def small_pool(monkeypatch):
    monkeypatch.setattr(on_torch_llm, "POOL_NUMBERS", 2**18)


@pytest.mark.parametrize("name", sorted(DENOISERS.keys() - TINY_DENOISERS.keys()))
def test_the_counts_are_those_of_the_counter(name):
    denoiser = DENOISERS[name]
    expected = denoiser.parameters, denoiser.inference_flops, denoiser.training_flops
    assert count_flops.count_denoiser(name) == expected


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("model", TINY_DENOISERS)
def test_a_session_is_measured_and_only_training_changes_the_weights(model, phase):
    session = open_session("diffusion", phase, MODEL=model)
    before = session.context.read(session.model.last_weight)
    measured = measure.measure(measure.Job(session, 2, max_seconds=0.05))
    assert not {"recompiled", "not_finite"} & set(measured.flags)
    assert (session.context.read(session.model.last_weight) != before) == (phase in ("training", "optimizer"))
    session.check_last_step()


@pytest.mark.parametrize("model", TINY_DENOISERS)
def test_every_weight_is_trained(model):
    session = open_session("diffusion", "backward", MODEL=model)
    session.prepare()
    session.step()
    assert all(weight.grad.any() for weight in session.model.trained_weights())


@pytest.mark.parametrize("model", TINY_DENOISERS)
@pytest.mark.parametrize("precision", ["bfloat16", "mixed_float16"])
def test_16_bits_agree_with_the_cpu_in_float32_and_train(model, precision):
    session = open_session("diffusion", "training", MODEL=model, PRECISION=precision)
    assert 1e-5 < session.output_error < 0.05
    for _ in range(4):
        session.step()
        assert np.isfinite(session.read())
        assert torch.isfinite(session.model.loss)


def test_a_wrong_gradient_is_refused(monkeypatch):
    compute_wrongly(monkeypatch, lambda right: right)
    assert open_session("diffusion").output_error == 0
    compute_wrongly(monkeypatch, lambda right: [right[0], 2 * right[1]])
    with pytest.raises(measure.MeasurementError, match="gradient"):
        open_session("diffusion")


def test_the_loss_is_the_mean_squared_error_of_the_noise():
    session = open_session("diffusion", "forward")
    *inputs, noise = batch = next(session.batches)
    expected = np.mean((session.model.predict(*inputs) - session.context.as_array(noise)) ** 2)
    session.model.forward(*batch)
    assert float(session.model.loss) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("place", range(5))
def test_the_output_depends_on_every_input(place):
    session = open_session("diffusion", "inference", MODEL="tiny-sdxl")
    inputs = list(session.inputs_of(next(session.batches)))
    before = session.model.infer(*inputs)
    inputs[place] = inputs[place] + 1
    assert not torch.equal(session.model.infer(*inputs), before)


def test_images_that_are_compared_with_the_cpu_are_small():
    workload = open_session.workload("diffusion", "inference", MODEL="sdxl")
    context = on_torch.DeviceContext(open_session.settings("diffusion"))
    assert workload.make_batches(1, 0)[0][0].shape == (1, 4, 128, 128)
    assert context.pairs(workload)[0][0].shape == (2, 4, 16, 16)
