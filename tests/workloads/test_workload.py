"""Names, shapes, parameters, FLOPs and bytes of models, against published figures and against sums."""

import functools

import pytest

import llm_benchmark
from bench.settings import SettingError
from llm_benchmark import DECODERS
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


# Language models

describe_llm = functools.partial(describe, "llm")
# The safetensors of each repository, a tied table counted once.
PUBLISHED = {"smollm2-135m": 134_515_008, "qwen3-0.6b": 596_049_920, "llama-3.2-1b": 1_235_814_400}
PUBLISHED |= {"llama-3.2-3b": 3_212_749_824, "qwen3-4b": 4_022_468_096, "llama-3.1-8b": 8_030_261_248}
PUBLISHED |= {"qwen3-30b-a3b": 30_532_122_624}


def test_parameters_equal_published_ones():
    assert {model: describe_llm(MODEL=model, PHASE="decode").parameters for model in PUBLISHED} == PUBLISHED


@pytest.mark.parametrize("model", DECODERS)
def test_a_prompt_takes_the_flops_of_its_tokens_one_by_one_and_the_backward_pass_twice_these(model):
    count = functools.partial(llm_benchmark.count_flops, DECODERS[model])
    output = 2 * DECODERS[model].vocab_size * DECODERS[model].hidden_size
    singly = [count(1, depth)[0] for depth in range(10)]
    assert count(7)[0] == sum(singly[:7]) - 6 * output
    assert count(7, logits=7) == (sum(singly[:7]), 2 * sum(singly[:7]))
    assert count(7, 3, logits=7)[0] == sum(singly[3:])


def test_a_decode_step_reads_the_cache_of_every_sequence():
    sizes = {"BATCH_SIZE": "4", "DEPTH": "10", "NEW_TOKENS": "3", "PRECISION": "bfloat16"}
    decode = describe_llm(MODEL="llama-3.2-1b", PHASE="decode", **sizes)
    # 10, 11 and 12 tokens before the new one, which is read too; 32 KiB each, as its model card's 131,072 / 4
    assert decode.bytes_per_step == 4 * 12 * 2**15


def test_a_mixture_of_experts_uses_its_published_active_parameters_and_is_not_trained():
    flops = describe_llm(MODEL="qwen3-30b-a3b", PHASE="prefill", PROMPT_TOKENS="1").flops_per_item
    assert flops / 2 == pytest.approx(3.3e9 - 151_936 * 2048, rel=0.02)  # 3.3 billion, with the embedding
    with pytest.raises(SettingError, match="PHASE=prefill"):
        describe_llm(MODEL="qwen3-30b-a3b", PHASE="training")


def test_a_step_has_the_tokens_of_its_sequences():
    prefill = describe_llm(PHASE="prefill", BATCH_SIZE="3", PROMPT_TOKENS="5")
    assert (prefill.unit, prefill.items_per_step, prefill.bytes_per_step) == ("tokens", 15, None)
    ((ids,), *_) = prefill.make_batches(3, seed=0)
    assert (ids.shape, 1 <= ids.min() <= ids.max() < 49_152) == ((3, 5), True)
    decode = describe_llm(PHASE="decode", BATCH_SIZE="3", DEPTH="4", NEW_TOKENS="2")
    assert decode.items_per_step == 3
    assert decode.make_batches(3, seed=0)[0][0].shape == (3, 6)
    cache = 6 * 2 * 30 * 3 * 64 * 4  # tokens, keys and values, layers, heads, their size, bytes
    assert decode.resident_bytes == 4 * 134_515_008 + 3 * cache


def test_lora_trains_as_many_parameters_as_published_and_its_phases_add_up():
    # PEFT prints 6,815,744 for q, k, v and o of Llama 3 8B with rank 8.
    lora = describe_llm(MODEL="llama-3.1-8b", PHASE="training", LORA_RANK="8", OPTIMIZER="sgd")
    assert lora.parameters == 6_815_744
    assert lora.resident_bytes == 4 * (8_030_261_248 + 2 * 6_815_744)
    phases = [describe_llm(PHASE=phase, LORA_RANK="8") for phase in ("forward", "backward", "training", "optimizer")]
    forward, backward, training, optimizer = (workload.flops_per_item for workload in phases)
    assert training == forward + backward
    assert forward < backward < 1.2 * forward  # frozen weights need no gradients
    assert optimizer is None
