"""Names, batches, parameters and FLOPs of images, MLPs, encoders and diffusion models, against published figures."""

import pytest

from bench.settings import SettingError
from mlp_benchmark import hidden_widths, mlp_counts
from tests.fakes import describe
from transformer_benchmark import ENCODERS, encoder_counts


def test_a_model_may_be_written_in_capitals_and_a_framework_may_have_other_image_models():
    asked = {"image": "A-new-model", "transformer": "BERT-large", "llm": "Llama-3.2-1B", "diffusion": "SDXL"}
    assert all(describe(command, MODEL=model).model == model.lower() for command, model in asked.items())


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
