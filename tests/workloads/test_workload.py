"""Names, batches, parameters and FLOPs of images, MLPs, encoders and diffusion models, against published figures."""

from dataclasses import replace

import numpy as np
import pytest

from bench.settings import SettingError
from bench.workloads import data
from diffusion_benchmark import DENOISERS, noise_batches
from mlp_benchmark import hidden_widths, mlp_counts
from tests.fakes import describe
from transformer_benchmark import ENCODERS, encoder_counts


def test_a_model_may_be_written_in_capitals_and_a_framework_may_have_other_image_models():
    asked = {"image": "A-new-model", "transformer": "BERT-large", "llm": "Llama-3.2-1B", "diffusion": "SDXL"}
    assert all(describe(command, MODEL=model).model == model.lower() for command, model in asked.items())


@pytest.mark.parametrize(
    ("command", "model", "known"),
    [("image", "resnet51", "resnet50"), ("llm", "llama", "llama-3.2-1b"), ("mlp", "mlp-0x5", "mlp-5x1024")],
)
def test_an_unknown_model_is_refused_with_known_ones(command, model, known):
    with pytest.raises(SettingError, match=f"MODEL='{model}' .*{known}"):
        describe(command, MODEL=model)


def test_parameters_and_flops_of_an_image_model_are_known_for_one_size():
    sizes = [describe("image", MODEL="vit_b_16", IMAGE_SIZE=side) for side in ("224", "256")]
    assert [workload.parameters for workload in sizes] == [86_567_656, None]
    assert (sizes[0].flops_per_item, sizes[1].flops_per_item) == (pytest.approx(3.5e10, rel=0.03), None)


def test_images_have_a_brightness_and_a_colour_and_all_together_mean_0_and_variance_1():
    images, _ = next(iter(describe("image", IMAGE_SIZE="32").make_batches(500, 0)))
    colours = images.mean((2, 3))
    assert abs(images.mean()) < 0.05
    assert images.var() == pytest.approx(1, abs=0.05)
    assert colours.var() == pytest.approx(0.5, abs=0.05)
    assert (images - colours[:, :, None, None]).var() == pytest.approx(0.5, abs=0.01)


def test_an_mlp_name_gives_its_layers_and_counts_equal_published_ones():
    widths = {"mlp-5x1024": (1024,) * 5, "mlp-3000-1000": (3000, 1000), "mlp-7": (7,)}
    assert {name: hidden_widths(name) for name in widths} == widths
    with pytest.raises(SettingError):
        hidden_widths("mlp-1001x8")
    parameters, flops = mlp_counts((3072, 3000, 1000, 10), "inference")
    assert parameters == 12_230_010  # 9,219,000 + 3,001,000 + 10,010
    assert flops == 2 * (3072 * 3000 + 3000 * 1000 + 1000 * 10)
    assert mlp_counts((3072, 3000, 1000, 10), "training")[1] == 3 * flops - 2 * 3072 * 3000


@pytest.mark.parametrize(
    ("model", "without_head"), [("distilbert", 66_362_880), ("bert-base", 109_482_240), ("bert-large", 335_141_888)]
)
def test_encoder_parameters_equal_published_ones(model, without_head):
    encoder = ENCODERS[model]
    width = encoder.hidden_size
    head = 8 * (width + 1) + (0 if encoder.is_bert else (width + 1) * width)  # published with BERT's pooler
    assert encoder_counts(encoder, "training")[0] == without_head + head


def test_bert_base_flops_follow_from_its_parameters():
    # Per token: 2 FLOPs per parameter outside the embeddings, plus the matmuls of attention.
    encoder = replace(ENCODERS["bert-base"], sequence_length=128)
    flops = encoder_counts(encoder, "inference")[1]
    assert flops / 128 == pytest.approx(2 * 85_054_464 + 12 * 4 * 128 * 768, rel=0.01)
    assert encoder_counts(encoder, "training")[1] == 3 * flops
    assert encoder_counts(replace(encoder, sequence_length=512), "inference")[1] > 4 * flops


def test_a_latent_image_has_its_time_its_prompt_and_its_noise():
    latents, times, *conditions, noise = describe("diffusion", MODEL="sdxl", IMAGE_SIZE="64").make_batches(3, 0)[0]
    assert (latents.shape, times.shape, noise.shape) == ((3, 4, 8, 8), (3,), (3, 4, 8, 8))
    assert [each.shape for each in conditions] == [(3, 77, 2048), (3, 1280), (3, 6)]
    assert {each.dtype for each in (latents, noise, *conditions)} == {np.dtype("float32")}
    assert not np.array_equal(latents, noise)


def test_tokens_of_flux_know_their_place():
    flux = replace(DENOISERS["flux.2-klein-4b"], image_size=64)
    latents, times, prompt, places, numbers, noise = noise_batches(flux, 2, 0)[0]
    assert latents.shape == noise.shape == (2, 16, 128)
    assert prompt.shape == (2, 512, 7680)
    assert places[1].tolist() == [[0, row, column, 0] for row in range(4) for column in range(4)]
    assert numbers[1].tolist() == [[0, 0, 0, number] for number in range(512)]
    assert set(times) <= {1, 0.5, 0.25, 0.125}  # which 16 bits do not change


def test_flops_of_a_diffusion_model_are_those_of_the_published_size():
    published = DENOISERS["sd-1.5"]
    small, inference, training = (
        describe("diffusion", MODEL="sd-1.5", PRECISION="float32", **more)
        for more in ({"IMAGE_SIZE": "256"}, {}, {"PHASE": "training"})
    )
    flops = [workload.flops_per_item for workload in (small, inference, training)]
    assert flops == [None, published.inference_flops, published.training_flops]
    assert inference.resident_bytes == 4 * 859_520_964
    assert training.resident_bytes == 4 * inference.resident_bytes  # gradients, two of AdamW
