"""What is special to language models in PyTorch: their cache, their library and their counts."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import llm_benchmark
from bench.frameworks.pytorch import on_torch, on_torch_llm
from bench.timing import MeasurementError, proof
from llm_benchmark import DECODERS
from tests.frameworks import packed
from tests.frameworks.sessions import describe_llm, measure_and_prove, open_llm
from tests.frameworks.torch_reference import TINY_DECODERS, TRAINED_DECODERS

LORA = {"LORA_RANK": "4"}


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_weights_and_cache_have_the_precision_asked_for(precision):
    session = open_llm(PRECISION=precision)
    layer = session.model.cache.layers[0]
    held = {p.dtype for p in session.model.uncompiled.parameters()} | {layer.keys.dtype, layer.values.dtype}
    assert held == {getattr(torch, precision)}
    session.step()
    assert torch.isfinite(session.last_result).all()
    stored = sum(each.nbytes for layer in session.model.cache.layers for each in (layer.keys, layer.values))
    assert stored == 2 * llm_benchmark.cache_bytes(DECODERS["tiny-llama"], 7, precision)


# Positions and cache: what is wrong must be found before anything is timed.


def cache_not_used(model, module, tokens, returns_all=False):
    return module(tokens)[:, -1]


def rotary_off_by_one(model, module, tokens, returns_all=False):
    places = torch.arange(tokens.shape[1], device=tokens.device)[None] + model.cache.get_seq_length()
    places += tokens.shape[1] == 1
    return module(tokens, places, model.cache)[:, -1]


@pytest.mark.parametrize("sabotaged", [cache_not_used, rotary_off_by_one])
def test_a_wrong_cache_is_wrong_output(monkeypatch, sabotaged):
    monkeypatch.setattr(on_torch_llm.CachedModel, "_run", torch.inference_mode()(sabotaged))
    with pytest.raises(MeasurementError, match="differs from the CPU's") as error:
        measure_and_prove(open_llm(PRECISION="bfloat16"))
    assert error.value.status == "wrong_output"


def test_logits_in_16_bits_are_compared_with_float32():
    session = open_llm(PRECISION="bfloat16")
    measure_and_prove(session)
    assert 1e-5 < session.proof.output_error < 0.05


# Training


def test_an_adapter_adds_its_product_to_the_frozen_weights():
    session = open_llm("training", MODEL="tiny-qwen", **LORA)
    (ids, _), module = next(session.batches), session.model.uncompiled
    with torch.no_grad():
        expected = module(ids)
        for layer in module.decoder.model.layers:
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                adapted = getattr(layer.self_attn, name)
                adapted.projection.weight += 2 * adapted.b @ adapted.a  # alpha is twice the rank
                setattr(layer.self_attn, name, adapted.projection)
        torch.testing.assert_close(module(ids), expected, rtol=1e-3, atol=1e-4)


def test_adapters_start_small():
    """Test what keeps rounding small: with a B A x as large as W x, it explained any gradient of most adapters."""
    modules = open_llm("training", MODEL="tiny-qwen", **LORA).model.uncompiled.modules()
    adapted = [each for each in modules if isinstance(each, on_torch_llm.Adapted)]
    sizes = [float(each.b.detach().std()) * each.a.shape[1] ** 0.5 for each in adapted]
    assert sizes
    assert sizes == pytest.approx([1] * len(sizes), rel=0.3)


@pytest.mark.parametrize(("precision", "environ"), [("bfloat16", LORA), ("bfloat16", {}), ("mixed_bfloat16", {})])
def test_training_moves_weights_in_16_bits_and_positions_stay_in_float32(precision, environ):
    session = open_llm("training", MODEL="tiny-qwen", PRECISION=precision, **environ)
    module, whole = session.model.uncompiled, torch.bfloat16 if precision == "bfloat16" else torch.float32
    assert {weight.dtype for weight in module.parameters()} == {whole}
    assert module.to(torch.bfloat16).decoder.model.rotary_emb.inv_freq.dtype == torch.float32
    read = []
    for _ in range(3):
        session.step()
        read.append(session.read())
    assert len(set(read)) == 3


# Weights and counts


@pytest.mark.parametrize("model", TINY_DECODERS)
def test_tied_tables_stay_tied_positions_are_the_librarys_and_weights_keep_their_variance(model):
    module = open_llm(MODEL=model, PRECISION="bfloat16").model.uncompiled.decoder
    assert (module.lm_head.weight is module.model.embed_tokens.weight) == TINY_DECODERS[model].tie_word_embeddings
    assert module.config._attn_implementation == "sdpa"
    fresh = type(module)(module.config).model.rotary_emb.inv_freq
    assert torch.equal(module.model.rotary_emb.inv_freq.cpu(), fresh)
    first, second = (layer.self_attn for layer in module.model.layers)
    assert not torch.equal(first.k_proj.weight, second.k_proj.weight)
    assert (64 * first.q_proj.weight.float().var()).item() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("model", TINY_DECODERS)
@pytest.mark.parametrize(
    ("phase", "environ"),
    [
        ("prefill", {}),
        ("decode", {}),
        ("training", {}),
        ("training", LORA),
        ("forward", LORA),
        ("training", LORA | {"WEIGHT_BITS": "8"}),
    ],
)
def test_the_formulas_agree_with_the_counter(model, phase, environ):
    # Of a single token in a cache of one: there the counter, which does not know of masks, counts no empty slots.
    environ = environ | {"PROMPT_TOKENS": "1", "DEPTH": "0", "NEW_TOKENS": "1", "USE_GPU": "0"}
    if phase not in ("prefill", "decode") and model not in TRAINED_DECODERS:
        pytest.skip("it is not trained")
    workload = describe_llm(phase, MODEL=model, **environ)
    # The gradients of queries and keys of a single token are nothing but rounding on some chips.
    session = open_llm(phase, compares=False, MODEL=model, **environ)
    if model == "tiny-moe":
        session.model.uncompiled.decoder.config._experts_implementation = "batched_mm"  # the counter knows no other
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # others compute the scores again
        session.step()
    assert counter.get_total_flops() == workload.flops_per_item * workload.items_per_step


# Quantised weights


@pytest.fixture(params=[8, 4])
def bits(monkeypatch, request):
    """Let a CPU do what CUDA's kernels for 4 bits do."""
    monkeypatch.setattr(torch.ops.aten, "_convert_weight_to_int4pack", packed.pack)
    monkeypatch.setattr(torch.ops.aten, "_weight_int4pack_mm", packed.multiply)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setitem(on_torch_llm.DEVICES, 4, ("cpu",))
    return request.param


@pytest.mark.parametrize("model", TRAINED_DECODERS)
def test_all_projections_and_the_output_are_quantised_and_the_reference_is_plain(model, bits):
    workload = describe_llm("decode", MODEL=model)
    module = on_torch_llm.Decoder(workload)
    module.fill("cpu", torch.bfloat16, bits)
    reference = on_torch_llm.copy_to_cpu(module, on_torch_llm.Decoder(workload), torch.float32)
    projections = {f"{name}.weight" for name, each in module.named_modules() if isinstance(each, torch.nn.Linear)}
    assert len(projections) == 15
    for name, weights in module.named_parameters():
        restored = reference.get_parameter(name)
        assert (type(weights) is not torch.nn.Parameter) == (name in projections)
        assert (type(restored), restored.dtype) == (torch.nn.Parameter, torch.float32)
        if name not in projections:
            assert torch.equal(restored, weights.float())


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-qwen"])
def test_bytes_of_quantised_weights_agree_with_a_formula(model, bits):
    decoder = DECODERS[model]
    session = open_llm("decode", MODEL=model, PRECISION="bfloat16", WEIGHT_BITS=str(bits), USE_GPU="0")
    matrices = [each.weight.shape for each in session.model.uncompiled.modules() if isinstance(each, torch.nn.Linear)]
    count, rows = sum(n * k for n, k in matrices), sum(n for n, _ in matrices)
    norms = llm_benchmark.count_parameters(decoder) - count
    norms -= 0 if decoder.tie_word_embeddings else decoder.vocab_size * decoder.hidden_size
    padded = 1024 * rows  # inputs of each row, of which these models have fewer
    # 8 bits: for each row a scale in float32 and a zero of one byte; 4: for each group both in 16 bits
    expected = count + 5 * rows if bits == 8 else padded // 2 + 4 * padded // 64
    assert session.weight_bytes == expected + 2 * norms


def double_the_scale(weight):
    scale = weight.scale if hasattr(weight, "scale") else weight.scale_and_zero[..., 0]
    scale.mul_(2)


def swap_nibbles(weight):
    numbers = weight.qdata.view(torch.uint8)
    numbers.copy_((numbers << 4) | (numbers >> 4))


@pytest.mark.parametrize("sabotage", [double_the_scale, swap_nibbles])
def test_wrongly_quantised_weights_are_wrong_output(monkeypatch, bits, sabotage):
    from torchao import quantization

    right = quantization.quantize_

    def quantize(layer, config):
        right(layer, config)
        sabotage(layer.weight)

    monkeypatch.setattr(quantization, "quantize_", quantize)
    with pytest.raises(MeasurementError) as error:
        open_llm(PRECISION="bfloat16", WEIGHT_BITS=str(bits), USE_GPU="0")
    assert error.value.status == "wrong_output"


def train_quantised(bits):
    environ = {"MODEL": "tiny-qwen", "PRECISION": "bfloat16", "WEIGHT_BITS": str(bits), "USE_GPU": "0"}
    return open_llm("training", **LORA, **environ)


def test_a_wrong_gradient_of_an_early_adapter_is_wrong_output(monkeypatch, bits):
    right = on_torch_llm.Restored.backward

    def backward(context, gradient):
        is_key_or_value = gradient.shape[-1] == 64 and context.saved_tensors[0].shape == (64, 64)
        return right(context, gradient * (not is_key_or_value))

    monkeypatch.setattr(on_torch_llm.Restored, "backward", backward)
    with pytest.raises(MeasurementError, match="the gradient of adapter"):
        measure_and_prove(train_quantised(bits))


def test_the_gradient_through_quantised_weights_is_that_of_the_weights_they_stand_for(bits):
    module = on_torch_llm.Decoder(describe_llm("decode", MODEL="tiny-qwen"))
    module.fill("cpu", torch.float32 if bits == 8 else torch.bfloat16, bits)
    layer = module.decoder.model.layers[0].mlp.down_proj
    x = torch.randn(3, layer.weight.shape[1], dtype=layer.weight.dtype, requires_grad=True)
    restored = on_torch_llm.restore(layer.weight, x.dtype)
    (got,) = torch.autograd.grad(layer(x).sum(), x)
    (expected,) = torch.autograd.grad(functional.linear(x, restored).sum(), x)
    torch.testing.assert_close(got, expected)


def test_training_keeps_no_restored_weights_for_the_backward_pass(bits):
    session, kept = train_quantised(bits), []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        session.model.forward(*next(session.batches))
    layers = [each for each in session.model.uncompiled.modules() if isinstance(each, on_torch_llm.Quantised)]
    shapes = {shape for each in layers for shape in (each.weight.shape, each.weight.shape[::-1])}
    assert len(layers) == 15
    assert not shapes & {each.shape for each in kept if type(each) is torch.Tensor}


def test_a_matrix_that_torchao_skips_is_refused(monkeypatch):
    monkeypatch.setattr("torchao.quantization.quantize_", lambda layer, config: None)
    with pytest.raises(MeasurementError, match="skips"):
        open_llm(WEIGHT_BITS="8", USE_GPU="0")


@pytest.mark.parametrize("environ", [{"WEIGHT_BITS": "4"}, {"WEIGHT_BITS": "8", "MODEL": "tiny-moe"}])
def test_4_bits_need_cuda_and_quantised_experts_need_mlx(environ):
    with pytest.raises(MeasurementError, match="FRAMEWORK=mlx") as error:
        open_llm(PRECISION="bfloat16", USE_GPU="0", **environ)
    assert error.value.status == "unsupported"


@pytest.mark.parametrize(("device", "kernels"), [("cuda", ["grouped_mm", "batched_mm"]), ("cpu", ["grouped_mm"] * 2)])
def test_experts_are_multiplied_as_the_library_does_in_prefill_and_decode(device, kernels):
    session = open_llm(MODEL="tiny-moe", USE_GPU="0")
    session.context.device = device
    for kernel, tokens in zip(kernels, (2, 1), strict=True):
        session.model.extend(torch.ones(2, tokens, dtype=int))
        assert session.model.uncompiled.decoder.config._experts_implementation == kernel


def test_a_compiled_mixture_of_experts_is_compared_with_the_uncompiled_one():
    measure_and_prove(open_llm(MODEL="tiny-moe", COMPILE="1", PRECISION="bfloat16"))


def test_an_uncompiled_row_of_8_bits_says_how_it_is_used(monkeypatch):
    assert "COMPILE=1" in open_llm(WEIGHT_BITS="8", USE_GPU="0").context.notes()
    assert "COMPILE=1" not in open_llm().context.notes()
    deep = replace(DECODERS["tiny-llama"], num_layers=6)
    monkeypatch.setitem(DECODERS, "tiny-llama", deep)
    bytes_of_five = proof.HOST_BYTES["float32"] * llm_benchmark.count_parameters(replace(deep, num_layers=5))
    monkeypatch.setattr(proof.resources, "available_bytes", lambda: bytes_of_five)
    monkeypatch.setattr(torch, "compile", lambda function, **how: function)
    monkeypatch.setattr(on_torch.DeviceContext, "trace_count", lambda self: 1)
    session = open_llm(PRECISION="bfloat16", WEIGHT_BITS="8", COMPILE="1", USE_GPU="0")
    measure_and_prove(session)  # the two layers that are compared are uncompiled
    assert ("2 of 6 layers" in session.proof.note, "COMPILE=1" in session.context.notes()) == (True, False)
