"""What is special to language models in PyTorch: their cache, their library and their counts."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import llm_benchmark
from bench.settings import SettingError
from llm_benchmark import DECODERS
from tests.frameworks.sessions import describe_llm, open_llm
from tests.frameworks.torch_reference import TINY_DECODERS, TRAINED_DECODERS

LORA = {"LORA_RANK": "4"}


def test_weights_and_cache_have_the_precision_asked_for():
    model = open_llm(PRECISION="bfloat16").model
    cached = [each for layer in model.cache.layers for each in (layer.keys, layer.values)]
    assert {each.dtype for each in [*model.uncompiled.parameters(), *cached]} == {torch.bfloat16}
    stored = sum(each.nbytes for each in cached)
    assert stored == 2 * llm_benchmark.cache_bytes(DECODERS["tiny-llama"], 7, "bfloat16")


def test_an_old_transformers_is_one_line(monkeypatch):
    monkeypatch.setattr("transformers.__version__", "5.3.1")
    with pytest.raises(SettingError, match="transformers>="):
        open_llm()


def test_an_adapter_adds_its_product_to_the_frozen_weights():
    session = open_llm("training", MODEL="tiny-qwen", **LORA)
    (ids, _), module = next(session.batches)[0], session.model.uncompiled
    with torch.no_grad():
        expected = module(ids)
        for layer in module.decoder.model.layers:
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                adapted = getattr(layer.self_attn, name)
                # A B A x as large as W x would magnify rounding: it explained any gradient of most adapters.
                assert float(adapted.lora_b.std()) * adapted.lora_a.shape[1] ** 0.5 == pytest.approx(1, rel=0.3)
                adapted.projection.weight += 2 * adapted.lora_b @ adapted.lora_a  # alpha is twice the rank
                setattr(layer.self_attn, name, adapted.projection)
        torch.testing.assert_close(module(ids), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("model", TINY_DECODERS)
@pytest.mark.parametrize(
    ("phase", "environ"), [("prefill", {}), ("decode", {}), ("training", {}), ("training", LORA), ("forward", LORA)]
)
def test_the_formulas_agree_with_the_counter(model, phase, environ):
    # Of a single token in a cache of one: there the counter, which does not know of masks, counts no empty slots.
    environ = environ | {"PROMPT_TOKENS": "1", "DEPTH": "0", "NEW_TOKENS": "1", "USE_GPU": "0"}
    if phase not in ("prefill", "decode") and model not in TRAINED_DECODERS:
        pytest.skip("it is not trained")
    workload = describe_llm(phase, MODEL=model, **environ)
    session = open_llm(phase, MODEL=model, **environ)
    if model == "tiny-moe":
        session.model.uncompiled.decoder.config._experts_implementation = "batched_mm"  # the counter knows no other
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # others compute the scores again
        session.step()
    assert counter.get_total_flops() == workload.flops_per_item * workload.items_per_step
