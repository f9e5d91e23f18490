"""Diffusion models in PyTorch: three classes of the diffusers library, their counts, and their steps."""

import numpy as np
import pytest

from checks import count_flops
from diffusion_benchmark import DENOISERS
from tests.fakes import describe
from tests.frameworks.sessions import TINY_DENOISERS, Opener, assert_measured

open_session = Opener("torch")


@pytest.mark.parametrize("name", sorted(DENOISERS.keys() - TINY_DENOISERS.keys()))
def test_the_counts_are_those_of_the_counter(name):
    denoiser = DENOISERS[name]
    expected = denoiser.parameters, denoiser.inference_flops, denoiser.training_flops
    assert count_flops.count_denoiser(name) == expected


def test_the_prompt_of_what_is_compared_is_short():
    batch, *_ = describe("diffusion", MODEL="flux.2-klein-4b").make_checked(1, 0)
    assert [each.shape for each in batch] == [(1, 64, 128), (1,), (1, 64, 7680), (1, 64, 4), (1, 64, 4), (1, 64, 128)]


@pytest.mark.parametrize("phase", ["inference", "training"])
@pytest.mark.parametrize("model", TINY_DENOISERS)
def test_a_session_is_measured_in_16_bits(model, phase):
    session = open_session("diffusion", phase, MODEL=model, PRECISION="bfloat16")
    assert_measured(session, 2)
    assert 1e-5 < session.output_error < 0.05


def test_the_loss_is_the_mean_squared_error_of_the_noise():
    session = open_session("diffusion", "forward")
    *inputs, noise = batch = next(session.batches)[0]
    expected = np.mean((session.model.output(*inputs) - session.context.to_numpy(noise)) ** 2)
    session.model.forward(*batch)
    assert float(session.model.loss) == pytest.approx(expected, rel=1e-5)
