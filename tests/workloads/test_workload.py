"""Names, parameters and FLOPs of MLPs and encoders, against published figures."""

from dataclasses import replace

import pytest

from bench.settings import SettingError, read_settings
from bench.workloads.standard_set import STANDARD_SET
from image_benchmark import image_workload
from mlp_benchmark import hidden_widths, mlp_counts
from tests.fakes import workload_of_command
from transformer_benchmark import ENCODERS, encoder_counts


@pytest.mark.parametrize(
    ("command", "asked", "model"),
    [
        ("image", "ResNet-50", "resnet50"),
        ("image", "RegNet_Y_16GF", "regnet_y_16gf"),
        ("image", "a-new-model", "a-new-model"),  # which a framework may have
        ("transformer", "BERT-large", "bert-large"),
        ("mlp", "MLP 5x1024", "mlp-5x1024"),
        ("llm", "Llama-3.2-1B", "llama-3.2-1b"),
        ("diffusion", "Stable Diffusion 1.5", "sd-1.5"),
    ],
)
def test_a_model_has_the_name_that_pages_print_too(command, asked, model):
    assert workload_of_command(command, read_settings(command, {"MODEL": asked}).on("cuda")).model == model


def test_the_parameters_of_a_vision_transformer_are_known_for_one_size():
    sizes = (read_settings("image", {"MODEL": "vit_b_16", "IMAGE_SIZE": side}) for side in ("224", "256"))
    assert [image_workload(settings).parameters for settings in sizes] == [86_567_656, None]


@pytest.mark.parametrize(("command", "model"), [("image", "resnet51"), ("llm", "llama"), ("mlp", "resnet50")])
def test_an_unknown_model_is_refused_with_known_ones(command, model):
    with pytest.raises(SettingError, match=f"MODEL='{model}' .*(resnet50|llama-3.2-1b|mlp-5x1024)"):
        workload_of_command(command, read_settings(command, {"MODEL": model}))


def test_an_mlp_name_gives_its_layers():
    widths = {"mlp-5x1024": (1024,) * 5, "mlp-3000-1000": (3000, 1000), "mlp-7": (7,)}
    assert {name: hidden_widths(name) for name in widths} == widths
    for name in ("mlp-0x5", "mlp-1001x8", "resnet50"):
        with pytest.raises(SettingError):
            hidden_widths(name)


def test_mlp_counts_equal_published_ones():
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


@pytest.mark.parametrize("framework", ["torch", "mlx"])
def test_the_set_fine_tunes_on_gpus_in_16_bits_and_names_the_memory_that_it_shares(framework):
    (line,) = (line for line in STANDARD_SET if "LoRA" in line.title)
    environ = line.environ("mps", framework, "bfloat16", compiles=False)
    settings = read_settings(line.workload, {"FRAMEWORK": framework} | environ)
    assert (settings.phase, settings.lora_rank, settings.precision) == ("training", 8, "bfloat16")
    assert all(line.needs[1] for line in STANDARD_SET if "cpu" not in line.devices and line.workload != "mlp")


def test_images_have_a_brightness_and_a_colour_and_all_together_mean_0_and_variance_1():
    workload = image_workload(read_settings("image", {"IMAGE_SIZE": "32"}))
    images, _ = next(iter(workload.make_batches(500, 0)))
    colours = images.mean((2, 3))
    assert abs(images.mean()) < 0.05
    assert images.var() == pytest.approx(1, abs=0.05)
    assert colours.var() == pytest.approx(0.5, abs=0.05)
    assert (images - colours[:, :, None, None]).var() == pytest.approx(0.5, abs=0.01)
