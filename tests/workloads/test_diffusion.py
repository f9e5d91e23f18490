"""Batches, counts and the computed rate of diffusion models."""

import math
from dataclasses import replace

import numpy as np

from bench.settings import read_settings
from bench.workloads import data
from diffusion_benchmark import DENOISERS, diffusion_workload


def describe(**environ):
    return diffusion_workload(read_settings("diffusion", environ).on("cpu"))


def test_a_latent_image_has_its_time_its_prompt_and_its_noise():
    batches = describe(MODEL="sdxl", IMAGE_SIZE="64").make_batches(3, 0)
    latents, times, *conditions, noise = batches[0]
    assert latents.shape == noise.shape == (3, 4, 8, 8)
    assert times.shape == (3,)
    assert 0 <= times.min() <= times.max() < 1000
    assert [each.shape for each in conditions] == [(3, 77, 2048), (3, 1280), (3, 6)]
    assert {each.dtype for each in (latents, noise, *conditions)} == {np.dtype("float32")}
    assert not np.array_equal(latents, noise)
    assert not np.array_equal(latents, batches[1][0])


def test_tokens_of_flux_know_their_place():
    flux = replace(DENOISERS["flux.2-klein-4b"], image_size=64)
    latents, times, prompt, places, numbers, noise = data.noise_batches(flux, 2, 0)[0]
    assert latents.shape == noise.shape == (2, 16, 128)
    assert prompt.shape == (2, 512, 7680)
    assert places[1].tolist() == [[0, row, column, 0] for row in range(4) for column in range(4)]
    assert numbers[1].tolist() == [[0, 0, 0, number] for number in range(512)]
    for thousandths in 1000 * times:  # bfloat16 has 8 significant bits
        assert math.frexp(thousandths)[0] * 2**8 % 1 == 0


def test_flops_are_those_of_the_published_size():
    sizes = {"PRECISION": "float32", "MODEL": "sd-1.5"}
    assert describe(**sizes).flops_per_item == DENOISERS["sd-1.5"].inference_flops
    assert describe(**sizes, PHASE="training").flops_per_item == DENOISERS["sd-1.5"].training_flops
    assert describe(**sizes, IMAGE_SIZE="256").flops_per_item is None
    assert describe(**sizes).resident_bytes == 4 * 859_520_964
    assert describe(**sizes, PHASE="training").resident_bytes == 4 * 4 * 859_520_964  # gradients, two of AdamW
