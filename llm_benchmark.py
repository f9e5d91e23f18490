"""Measure tokens per second of a language model: prefill (a prompt), decode (token by token) and training.

    make llm
    MODEL=llama-3.2-1b PHASE=decode DEPTH=0,4096 BATCH_SIZE=1,8 make llm
    PHASE=training LORA_RANK=0,8 make llm
    PHASE=prefill PROMPT_TOKENS=128,512,2048 .venv/bin/python llm_benchmark.py

One step of prefill reads a batch of random prompts into an empty cache; one of decode adds a token to each sequence.
The definitions are those of llama-bench (pp512, tg128). One step of training predicts the next token at every place of
a batch of random sequences, and updates all weights, or only LoRA's adapters. docs/method-details.md has the details.
The model is that of the transformers library (Decoder in bench/frameworks/pytorch/on_torch_llm.py), in MLX that of
mlx-lm (build_llm() in on_mlx_llm.py). `make settings` explains the settings.
"""

import functools
import sys
from dataclasses import dataclass, replace

from bench.run import benchmark  # isort: skip  # first, because it tells of a missing package

import numpy as np

from bench.settings import SettingError
from bench.workloads.data import RESIDENT_BATCHES
from bench.workloads.workload import BYTES, Workload, flops_of_phase, resolve_model

COMPARED_LENGTH = 64  # length of the sequences with which a model in training is compared, at most


@dataclass(frozen=True)
class Decoder:
    """Published sizes of a Llama-like decoder: RMSNorm, rotary positions, gated feed-forward, no biases."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int  # heads of keys and values; each serves num_heads / num_kv_heads query heads
    head_dim: int
    intermediate_size: int  # width inside the feed-forward part, or inside each expert
    vocab_size: int
    max_position_embeddings: int  # most tokens in a sequence
    rope_theta: float  # base of the rotary positions
    rope_factor: float = 1.0  # Llama 3's scaling of positions from 8192 on
    tie_word_embeddings: bool = True  # the output matmul uses the embedding table
    is_qwen: bool = False  # Qwen 3 normalises each head's query and key
    norm_epsilon: float = 1e-5
    num_experts: int = 1  # feed-forward parts of a layer; a router chooses among several
    experts_per_token: int = 1
    lora_rank: int = 0  # rank of the adapters of q, k, v and o, the only trained weights; 0: all are trained

    def config(self):
        """Return the sizes in the words of a config.json, which the transformers library and mlx-lm share."""
        sizes = {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.max_position_embeddings,
            "rms_norm_eps": self.norm_epsilon,
            "tie_word_embeddings": self.tie_word_embeddings,
        }
        if self.num_experts > 1:
            sizes |= {"num_experts": self.num_experts, "num_experts_per_tok": self.experts_per_token}
            sizes |= {"moe_intermediate_size": self.intermediate_size, "norm_topk_prob": True}
            sizes |= {"decoder_sparse_step": 1, "mlp_only_layers": []}  # each layer has experts
        return sizes

    def read_weights(self, sizes, tokens):
        """Return the bytes of the weights that a step of some tokens reads, of {name: bytes}.

        A token uses k of N experts, so it leaves an expert out with a probability of 1 - k / N, and t tokens all do so
        with (1 - k / N) ** t. Random weights route like that; trained ones favour some experts, and read fewer.
        """
        share = 1 - (1 - self.experts_per_token / self.num_experts) ** tokens
        experts = [name for name in sizes if "experts" in name or "switch_mlp" in name]  # in PyTorch, in MLX
        return sum(sizes.values()) - round((1 - share) * sum(map(sizes.get, experts)))

    def rope_scaling(self):
        """Return Llama 3's scaling of positions in the same words; {} without it."""
        if self.rope_factor == 1:
            return {}
        lengths = {"factor": self.rope_factor, "original_max_position_embeddings": 8192}
        return {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0} | lengths


EXPERTS = {"tie_word_embeddings": False, "is_qwen": True, "norm_epsilon": 1e-6}
EXPERTS |= {"num_experts": 128, "experts_per_token": 8}
# config.json on huggingface.co: HuggingFaceTB/SmolLM2-135M, Qwen/Qwen3-*, meta-llama/Llama-3.*
DECODERS = {
    "smollm2-135m": Decoder(30, 576, 9, 3, 64, 1536, 49_152, 8192, 1e5),
    "qwen3-0.6b": Decoder(28, 1024, 16, 8, 128, 3072, 151_936, 40_960, 1e6, is_qwen=True, norm_epsilon=1e-6),
    "llama-3.2-1b": Decoder(16, 2048, 32, 8, 64, 8192, 128_256, 131_072, 5e5, rope_factor=32),
    "llama-3.2-3b": Decoder(28, 3072, 24, 8, 128, 8192, 128_256, 131_072, 5e5, rope_factor=32),
    "qwen3-4b": Decoder(36, 2560, 32, 8, 128, 9728, 151_936, 40_960, 1e6, is_qwen=True, norm_epsilon=1e-6),
    "llama-3.1-8b": Decoder(32, 4096, 32, 8, 128, 14_336, 128_256, 131_072, 5e5, 8, tie_word_embeddings=False),
    "qwen3-30b-a3b": Decoder(48, 2048, 32, 4, 128, 768, 151_936, 40_960, 1e6, **EXPERTS),
}


def llm_workload(settings):
    """Describe the work of a phase; prefill and decode have no loss, because nothing is trained."""
    settings = resolve_model(settings, DECODERS)
    decoder = find_decoder(settings)
    if settings.phase not in ("prefill", "decode"):
        return training_workload(settings, decoder)
    is_prefill = settings.phase == "prefill"
    size = settings.batch_size
    before, new = (0, settings.prompt_tokens) if is_prefill else (settings.depth, settings.new_tokens)
    cache = size * cache_bytes(decoder, before + new, settings.precision)
    return Workload(
        name="llm",
        model=settings.model,
        unit="tokens",
        items_per_step=size * new if is_prefill else size,
        make_batches=functools.partial(token_batches, decoder, before + new),
        make_checked=functools.partial(token_batches, decoder, COMPARED_LENGTH),
        sizes=decoder,
        parameters=count_parameters(decoder),
        flops_per_item=forward_flops(decoder, new, before, logits=1 if is_prefill else new) // new,
        item_bytes=8 if is_prefill else 8 * (before + new),  # int64
        resident_bytes=weight_bytes(decoder, settings) + cache,
        bytes_per_step=None if is_prefill else read_bytes(decoder, size, before, new, settings.precision),
        columns={"data": "synthetic"},
    )


def training_workload(settings, decoder):
    """Describe the work of training, or of a part of it."""
    tokens = settings.prompt_tokens
    decoder = replace(decoder, lora_rank=settings.lora_rank)
    forward, backward = training_flops(decoder, tokens)
    # Each trained weight has a gradient and the optimizer's state; those of adapters are not among the parameters.
    tensors = 1 if settings.optimizer == "sgd" else 3
    if decoder.lora_rank:
        tensors += 1
    trained = tensors * count_trainable(decoder)
    return Workload(
        name="llm",
        model=settings.model,
        unit="tokens",
        items_per_step=settings.batch_size * tokens,
        make_batches=functools.partial(shifted_batches, decoder, tokens),
        make_checked=functools.partial(shifted_batches, decoder, min(tokens, COMPARED_LENGTH)),
        loss="cross_entropy",
        sizes=decoder,
        parameters=count_trainable(decoder),
        flops_per_item=flops_of_phase(settings.phase, forward // tokens, backward // tokens),
        item_bytes=16,  # int64: a token and its target
        resident_bytes=weight_bytes(decoder, settings) + trained * BYTES[settings.precision],
        columns={"data": "synthetic", "sequence_length": tokens, "prompt_tokens": None},
    )


def find_decoder(settings):
    """Return the Decoder of the settings; raises SettingError if its positions do not suffice."""
    decoder = DECODERS[settings.model]
    if decoder.num_experts > 1 and settings.phase not in ("prefill", "decode"):
        raise SettingError(f"PHASE={settings.phase!r} is not measured for {settings.model}: set PHASE=prefill,decode")
    tokens = settings.prompt_tokens
    names = f"PROMPT_TOKENS='{settings.prompt_tokens}'"
    if settings.phase == "decode":
        tokens = settings.depth + settings.new_tokens
        names = f"DEPTH='{settings.depth}' and NEW_TOKENS='{settings.new_tokens}'"
    positions = decoder.max_position_embeddings
    if tokens > positions:
        raise SettingError(f"{names} need {tokens} positions, and {settings.model} has {positions}: set fewer")
    return decoder


def token_batches(decoder, length, batch_size, seed):
    """Make seeded batches of random tokens: a list of (ids,), int64 of shape (batch_size, length)."""
    random = np.random.default_rng(seed)
    return [
        (random.integers(1, decoder.vocab_size, size=(batch_size, length)),)  # 0 may mean padding
        for _ in range(RESIDENT_BATCHES)
    ]


def shifted_batches(decoder, length, batch_size, seed):
    """Make seeded batches of random tokens: a list of (ids, the token after each), int64 (batch_size, length)."""
    drawn = token_batches(decoder, length + 1, batch_size, seed)
    return [(np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])) for (ids,) in drawn]


def matmul_weights(decoder):
    """Count the weights of a layer that multiply a token: query, key, value, output, router, three of each expert."""
    attention = 2 * (decoder.num_heads + decoder.num_kv_heads) * decoder.head_dim * decoder.hidden_size
    router = decoder.num_experts * decoder.hidden_size if decoder.num_experts > 1 else 0
    return attention + router + 3 * decoder.experts_per_token * decoder.hidden_size * decoder.intermediate_size


def count_parameters(decoder):
    """Count the trainable parameters; a table that is both embedding and output counts once."""
    norms = 2 * decoder.hidden_size + (2 * decoder.head_dim if decoder.is_qwen else 0)
    tables = (1 if decoder.tie_word_embeddings else 2) * decoder.vocab_size * decoder.hidden_size
    unused = decoder.num_experts - decoder.experts_per_token
    layer = matmul_weights(decoder) + 3 * unused * decoder.hidden_size * decoder.intermediate_size + norms
    return tables + decoder.num_layers * layer + decoder.hidden_size


def adapter_sizes(decoder):
    """Return the (inputs, outputs) of a layer's projections that get an adapter: q, k, v and o."""
    width = decoder.hidden_size
    query = decoder.num_heads * decoder.head_dim
    key = decoder.num_kv_heads * decoder.head_dim
    return (width, query), (width, key), (width, key), (query, width)


def count_trainable(decoder):
    """Count the parameters that training changes: all, or LoRA's r (inputs + outputs) for each projection."""
    adapters = decoder.num_layers * sum(decoder.lora_rank * sum(sizes) for sizes in adapter_sizes(decoder))
    return adapters or count_parameters(decoder)


def training_flops(decoder, tokens):
    """Count the FLOPs of a sequence of `tokens` tokens: (forward, backward).

    A backward pass through a matmul of two trained or computed operands costs twice
    its forward pass: a gradient for each. LoRA needs none of frozen weights, so their matmuls cost once. The input of
    the first layer is then frozen too: its q, k and v give no gradient to it.
    """
    forward = forward_flops(decoder, tokens, logits=tokens)
    if not decoder.lora_rank:
        return forward, 2 * forward
    output = decoder.vocab_size * decoder.hidden_size
    frozen = 2 * tokens * (decoder.num_layers * matmul_weights(decoder) + output)
    adapters = 2 * tokens * count_trainable(decoder)
    to_input = sum(inputs * (outputs + decoder.lora_rank) for inputs, outputs in adapter_sizes(decoder)[:3])
    backward = 2 * (forward - frozen) + frozen + 2 * adapters - 2 * tokens * to_input
    return forward + adapters, backward


def forward_flops(decoder, tokens, depth=0, logits=1):
    """Count the FLOPs of `tokens` tokens after `depth` tokens in the cache; 1 multiply-add = 2 FLOPs.

    Each token passes through the matmuls, and attends to itself and to all tokens before it (scores and weighted
    values). Logits are computed for the last token only, or for more of them.
    """
    pairs = tokens * depth + tokens * (tokens + 1) // 2
    attention = 2 * pairs * decoder.num_heads * decoder.head_dim
    layers = decoder.num_layers * (tokens * matmul_weights(decoder) + attention)
    return 2 * (layers + logits * decoder.vocab_size * decoder.hidden_size)


def cache_bytes(decoder, tokens, precision):
    """Return the size in bytes of the keys and values of `tokens` tokens."""
    return 2 * decoder.num_layers * decoder.num_kv_heads * decoder.head_dim * tokens * BYTES[precision]


def read_bytes(decoder, batch_size, depth, new_tokens, precision):
    """Count the bytes that a decode step must read besides the weights: each sequence's cache at its mean length."""
    return batch_size * cache_bytes(decoder, 2 * depth + new_tokens + 1, precision) // 2


def weight_bytes(decoder, settings):
    """Return the size of the weights; quantised ones are counted without scales, but with the largest matrix in full.

    That is the least that building them needs, so nothing that fits is refused.
    """
    full = BYTES[settings.precision]
    if not settings.weight_bits:
        return count_parameters(decoder) * full
    return count_parameters(decoder) * settings.weight_bits // 8 + decoder.vocab_size * decoder.hidden_size * full


if __name__ == "__main__":
    sys.exit(benchmark("llm", llm_workload))
