"""Language models in PyTorch, two layers deep: what a step computes, and that a wrong cache or training is found."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import llm_benchmark
from bench import run
from bench.frameworks import on_torch, on_torch_llm, session
from bench.host import resources
from bench.settings import read_settings
from bench.timing import measure
from llm_benchmark import DECODERS, Decoder, llm_workload
from tests.frameworks import alias_device

TINY = {
    "tiny-llama": Decoder(2, 64, 4, 2, 16, 96, 500, 64, 1e4, rope_factor=8, tie_word_embeddings=False),
    "tiny-qwen": Decoder(2, 64, 4, 2, 32, 96, 500, 64, 1e4, is_qwen=True, norm_epsilon=1e-6),
}
TINY_SETTINGS = {"MODEL": "tiny-llama", "PRECISION": "float32", "BATCH_SIZE": "2", "PROMPT_TOKENS": "6"}
TINY_SETTINGS |= {"DEPTH": "3", "NEW_TOKENS": "4"}


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(on_torch_llm, "POOL_NUMBERS", 2**18)
    for name, decoder in TINY.items():
        monkeypatch.setitem(DECODERS, name, decoder)


def prepare(phase="decode", **environ):
    asked = {"PHASE": phase if phase in ("prefill", "decode") else "training"}
    settings = read_settings("llm", TINY_SETTINGS | asked | environ)
    settings = settings.on(on_torch.find_device(settings).device)
    return llm_workload(replace(settings, phase=phase)), settings


def open_session(phase="decode", **environ):
    return on_torch.open_session(*prepare(phase, **environ), phase, "device")


@torch.inference_mode()
def uncached(session, tokens):
    """The last logits of these tokens, without a cache."""
    ids = torch.as_tensor(tokens, device=session.context.device)
    return session.model.uncompiled(input_ids=ids, use_cache=False).logits[:, -1]


def close(got, expected):
    return torch.linalg.vector_norm(got - expected) < 1e-4 * torch.linalg.vector_norm(expected)


@pytest.mark.parametrize("model", TINY)
@pytest.mark.parametrize(("depth", "tokens"), [(3, 4), (0, 1)])
def test_steps_of_decode_are_the_model_itself_and_start_again_after_depth(model, depth, tokens):
    environ = {"MODEL": model, "DEPTH": str(depth), "NEW_TOKENS": str(tokens)}
    workload, _ = prepare(**environ)
    session = open_session(**environ)
    batches = [torch.as_tensor(ids) for (ids,) in workload.make_batches(2, 0)]
    for turn in range(9):  # two rounds over all batches, and one more
        # The prompt in the cache is the first batch's.
        read = torch.cat([batches[0][:, :depth], batches[turn % 4][:, depth:]], 1)
        for place in range(depth, depth + tokens):
            session.step()
            assert close(session.last_result, uncached(session, read[:, : place + 1])), (turn, place)


@pytest.mark.parametrize("model", TINY)
def test_a_step_of_prefill_is_the_model_itself(model):
    workload, _ = prepare("prefill", MODEL=model)
    session = open_session("prefill", MODEL=model)
    batches = [ids for (ids,) in workload.make_batches(2, 0)]
    assert batches[0].shape == (2, 6)
    for turn in range(6):
        session.step()
        assert session.last_result.shape == (2, 500)
        assert close(session.last_result, uncached(session, batches[turn % 4]))


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_session_is_measured(phase):
    session = open_session(phase, NEW_TOKENS="1")
    assert session.measured_precision == "float32"
    measured = measure.measure(measure.Job(session, 2, max_seconds=0.1))
    assert not {"recompiled", "not_finite"} & set(measured.flags)
    session.close()


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "float64"])
def test_weights_and_cache_have_the_precision_asked_for(precision):
    session = open_session(PRECISION=precision)
    layer = session.model.cache.layers[0]
    held = {p.dtype for p in session.model.uncompiled.parameters()} | {layer.keys.dtype, layer.values.dtype}
    assert held == {getattr(torch, precision)}
    session.step()
    assert torch.isfinite(session.last_result).all()
    decoder = DECODERS["tiny-llama"]
    stored = sum(each.nbytes for layer in session.model.cache.layers for each in (layer.keys, layer.values))
    assert stored == 2 * llm_benchmark.cache_bytes(decoder, 7, precision)
    weights = sum(p.nbytes for p in session.model.uncompiled.parameters())
    assert weights == llm_benchmark.weight_bytes(decoder, precision)


# Positions and cache: what is wrong must be found before anything is timed.


def cache_not_used(model, tokens):
    return model.uncompiled(input_ids=tokens, use_cache=False, logits_to_keep=1).logits[:, -1]


def rotary_off_by_one(model, tokens):
    places = torch.arange(tokens.shape[1], device=tokens.device)[None] + model.cache.get_seq_length()
    places += tokens.shape[1] == 1
    cache = {"past_key_values": model.cache, "position_ids": places}
    return model.uncompiled(input_ids=tokens, logits_to_keep=1, **cache).logits[:, -1]


def slot_off_by_one(model, tokens):
    logits = model._run(model.uncompiled, tokens)
    if tokens.shape[1] > 1:  # the next token writes over the last one of the prompt
        model.seek(tokens.shape[1] - 1)
    return logits


def mask_left_out(model, tokens):
    """Attention over empty slots too."""
    if tokens.shape[1] > 1:
        return model._run(model.uncompiled, tokens)
    seen = torch.ones(2, 1, 1, session.PROVED_TOKENS, dtype=torch.bool, device=tokens.device)
    cache = {"past_key_values": model.cache, "attention_mask": seen}
    return model.uncompiled(input_ids=tokens, logits_to_keep=1, **cache).logits[:, -1]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("sabotaged", [cache_not_used, rotary_off_by_one, slot_off_by_one, mask_left_out])
def test_a_wrong_cache_is_wrong_output(monkeypatch, sabotaged, precision):
    monkeypatch.setattr(on_torch_llm.CachedModel, "extend_uncompiled", torch.inference_mode()(sabotaged))
    with pytest.raises(measure.MeasurementError, match="single tokens through the cache differ by") as error:
        open_session(PRECISION=precision)
    assert error.value.status == "wrong_output"


def test_another_number_of_parameters_is_refused(monkeypatch):
    monkeypatch.setattr(llm_benchmark, "count_parameters", lambda decoder: 7)
    with pytest.raises(measure.MeasurementError, match="trainable parameters, not 7"):
        open_session()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_gpus_logits_are_compared_with_the_cpus(monkeypatch, precision):
    alias_device.pretend(monkeypatch, "cuda")
    open_session(USE_GPU="1", PRECISION=precision).close()
    right = on_torch_llm.CachedModel.predict_on_cpu
    monkeypatch.setattr(on_torch_llm.CachedModel, "predict_on_cpu", lambda model, tokens: right(model, tokens.flip(1)))
    with pytest.raises(measure.MeasurementError, match="differs from the CPU's"):
        open_session(USE_GPU="1", PRECISION=precision)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_wrong_compiled_step_is_refused(monkeypatch, phase):
    class Compiled:
        def __init__(self, module, dynamic):
            self.module = module

        def __call__(self, **inputs):
            output = self.module(**inputs)
            return SimpleNamespace(logits=output.logits * self.factor)

    monkeypatch.setattr(on_torch.DeviceContext, "trace_count", lambda self: 1)

    def finish_first_step(factor):
        monkeypatch.setattr(Compiled, "factor", factor, raising=False)
        session = open_session(phase, COMPILE="1")
        session.step()
        session.after_first_step()
        session.step()
        assert "more bytes" in session.note
        session.close()

    monkeypatch.setattr(torch, "compile", Compiled)
    finish_first_step(1)
    with pytest.raises(measure.MeasurementError, match="compiled, the output differs by"):
        finish_first_step(1.01)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_the_last_timed_logits_are_computed_again(phase):
    session = open_session(phase)
    assert session.note == ""
    for _ in range(5):
        session.step()
        session.check_last_step()
    session.last_result = session.last_result.flip(-1)
    with pytest.raises(measure.MeasurementError, match="last timed output"):
        session.check_last_step()


# Training

LORA = {"LORA_RANK": "4"}


def train(**environ):
    return open_session("training", MODEL="tiny-qwen", **environ)


@pytest.mark.parametrize("environ", [{}, LORA, LORA | {"CHECKPOINTING": "1"}])
def test_training_is_measured_and_its_loss_falls(environ):
    session = train(**environ)
    measured = measure.measure(measure.Job(session, 12, max_seconds=0.1))
    assert not {"recompiled", "not_finite"} & set(measured.flags)
    session.check_last_step()
    batch, losses = next(session.batches), []
    for _ in range(20):
        session.model.train(*batch)
        losses.append(session.model.loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("model", TINY)
@pytest.mark.parametrize("rank", [0, 4])
def test_a_step_trains_all_weights_or_only_the_adapters_of_attention(model, rank):
    session, (workload, _) = (f("training", MODEL=model, LORA_RANK=str(rank)) for f in (open_session, prepare))
    decoder, module = TINY[model], session.model.uncompiled
    before = {name: weight.detach().clone() for name, weight in module.named_parameters()}
    session.step()
    changed = {name for name, weight in module.named_parameters() if not torch.equal(weight, before[name])}
    assert changed == {name for name in before if not rank or name.rpartition(".")[2] in ("a", "b")}
    assert session.parameters == workload.parameters == sum(before[name].numel() for name in changed)
    if rank:
        heads, head = decoder.num_heads * decoder.head_dim, decoder.num_kv_heads * decoder.head_dim
        assert workload.parameters == 2 * rank * ((64 + heads) + 2 * (64 + head) + (heads + 64))


def test_an_adapter_adds_its_product_to_the_frozen_weights():
    session = train(**LORA)
    (ids, _), module = next(session.batches), session.model.uncompiled
    with torch.no_grad():
        expected = module(ids)
        for layer in module.decoder.model.layers:
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                adapted = getattr(layer.self_attn, name)
                adapted.projection.weight += 2 * adapted.b @ adapted.a  # alpha is twice the rank
                setattr(layer.self_attn, name, adapted.projection)
        assert close(module(ids), expected)


def test_a_frozen_weight_that_changes_is_wrong_output():
    session = train(**LORA)
    weights = next(each for each in session.model.uncompiled.parameters() if not each.requires_grad)
    weights[3, 5] += 1e-6
    with pytest.raises(measure.MeasurementError, match="frozen") as error:
        session.check_last_step()
    assert error.value.status == "wrong_output"


def test_checkpointing_computes_each_layer_twice_with_the_same_gradients():
    found = []
    for checkpointing in "01":
        session, calls = train(CHECKPOINTING=checkpointing), []
        for layer in session.model.uncompiled.decoder.model.layers:
            getattr(layer, "layer", layer).register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        torch.manual_seed(0)
        session.model.forward(*next(session.batches))
        session.model.backward()
        found.append((len(calls), session.model.last_gradient))
    (once, plain), (twice, again) = found
    assert (once, twice) == (2, 4)
    assert close(again, plain)


def leaky_attention(monkeypatch):
    right = torch.nn.functional.scaled_dot_product_attention
    change = {"is_causal": False, "attn_mask": None}
    monkeypatch.setattr(
        torch.nn.functional, "scaled_dot_product_attention", lambda *x, **how: right(*x, **(how | change))
    )


def targets_not_shifted(monkeypatch):
    def same(decoder, length, batch_size, seed):
        return [(ids, ids) for (ids,) in llm_benchmark.token_batches(decoder, length, batch_size, seed)]

    monkeypatch.setattr(llm_benchmark, "shifted_batches", same)


def loss_of_a_sum(monkeypatch):
    monkeypatch.setitem(on_torch.LOSSES, "cross_entropy", lambda outputs, target: 2 * RIGHT_LOSS(outputs, target))


def wrong_gradient(monkeypatch):
    def loss(outputs, target):
        return RIGHT_LOSS(outputs, target) * (2 if outputs.dtype == torch.float32 else 1)

    monkeypatch.setitem(on_torch.LOSSES, "cross_entropy", loss)


RIGHT_LOSS = on_torch.LOSSES["cross_entropy"]


@pytest.mark.parametrize("environ", [{}, LORA], ids=["full", "lora"])
@pytest.mark.parametrize(
    ("sabotage", "said"),
    [
        (leaky_attention, "later tokens"),
        (targets_not_shifted, "first loss"),
        (loss_of_a_sum, "first loss"),
        (wrong_gradient, "gradient"),
    ],
)
def test_a_wrong_training_is_wrong_output(monkeypatch, sabotage, said, environ):
    sabotage(monkeypatch)
    with pytest.raises(measure.MeasurementError, match=said) as error:
        train(**environ)
    assert error.value.status == "wrong_output"


@pytest.mark.parametrize("precision", ["bfloat16", "mixed_bfloat16"])
@pytest.mark.parametrize("environ", [{}, LORA], ids=["full", "lora"])
def test_training_moves_weights_in_16_bits_and_positions_stay_in_float32(precision, environ):
    session = train(PRECISION=precision, **environ)
    module, whole = session.model.uncompiled, torch.bfloat16 if precision == "bfloat16" else torch.float32
    assert {weight.dtype for weight in module.parameters()} == {whole}
    assert module.to(torch.bfloat16).decoder.model.rotary_emb.inv_freq.dtype == torch.float32
    read = []
    for _ in range(3):
        session.step()
        read.append(session.read())
    assert len(set(read)) == 3


# The published shapes


@pytest.mark.parametrize("model", [name for name in DECODERS if not name.startswith("tiny")])
def test_the_librarys_models_have_the_published_parameters(model):
    workload, _ = prepare(MODEL=model)
    module = on_torch_llm.build_llm(workload)
    assert on_torch.count_parameters(module) == workload.parameters
    assert {p.device.type for p in module.parameters()} == {"meta"}
    assert module.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("model", TINY)
def test_tied_tables_stay_tied_positions_are_the_librarys_and_weights_keep_their_variance(model):
    module = open_session(MODEL=model, PRECISION="bfloat16").model.uncompiled
    assert (module.lm_head.weight is module.model.embed_tokens.weight) == TINY[model].tie_word_embeddings
    fresh = type(module)(module.config).model.rotary_emb.inv_freq
    assert module.model.rotary_emb.inv_freq.dtype == torch.float32
    assert torch.equal(module.model.rotary_emb.inv_freq.cpu(), fresh)
    first, second = (layer.self_attn for layer in module.model.layers)
    assert not torch.equal(first.k_proj.weight, first.v_proj.weight)
    assert not torch.equal(first.k_proj.weight, second.k_proj.weight)
    assert (64 * first.q_proj.weight.float().var()).item() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("model", TINY)
def test_the_formulas_agree_with_the_counter(model):
    # Of a single token in a cache of one: there the counter, which does not know of masks, counts no empty slots.
    for phase in ("prefill", "decode"):
        environ = {"PROMPT_TOKENS": "1", "DEPTH": "0", "NEW_TOKENS": "1", "MODEL": model, "USE_GPU": "0"}
        session, (workload, _) = open_session(phase, **environ), prepare(phase, **environ)
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            session.step()
        assert counter.get_total_flops() == workload.flops_per_item * workload.items_per_step


@pytest.mark.parametrize("model", TINY)
@pytest.mark.parametrize("rank", ["0", "4"])
def test_the_formulas_of_training_agree_with_the_counter(model, rank):
    environ = {"PROMPT_TOKENS": "1", "MODEL": model, "LORA_RANK": rank, "USE_GPU": "0"}
    for phase in ("training", "forward", "backward"):
        session, (workload, _) = open_session(phase, **environ), prepare(phase, **environ)
        with sdpa_kernel(SDPBackend.MATH):  # others compute the scores again in the backward pass
            if session.prepare:
                session.prepare()
            with FlopCounterMode(display=False) as counter:
                session.step()
        assert counter.get_total_flops() == workload.flops_per_item * workload.items_per_step, phase


@pytest.mark.parametrize(
    ("free", "environ", "said"),
    [
        (16, {"MODEL": "llama-3.1-8b", "PRECISION": "bfloat16"}, "16.06 GB, but only 16 GB"),
        (0.6, {"MODEL": "smollm2-135m", "DEPTH": "8000", "BATCH_SIZE": "1"}, "but only 0.6 GB"),  # the cache
    ],
)
def test_what_does_not_fit_is_out_of_memory_before_it_is_built(monkeypatch, free, environ, said):
    monkeypatch.setattr(resources, "available_bytes", lambda: int(free * 1e9))
    workload, _ = prepare(USE_GPU="0", **environ)
    card, shared = (SimpleNamespace(has_own_memory=own) for own in (True, False))  # an integrated GPU shares it
    run.refuse_too_large(workload, card)  # its own allocator reports that
    with pytest.raises(MemoryError, match=said):
        run.refuse_too_large(workload, shared)
