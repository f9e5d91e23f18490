"""Measure tokens per second of a language model: prefill (a prompt), decode (token by token) and training.

    make llm
    MODEL=llama-3.2-1b PHASE=decode DEPTH=0,4096 BATCH_SIZE=1,8 make llm
    PHASE=training LORA_RANK=0,8 make llm
    PHASE=prefill PROMPT_TOKENS=128,512,2048 .venv/bin/python llm_benchmark.py

One step of prefill reads a batch of random prompts into an empty cache; one of decode adds a token to each sequence.
The definitions are those of llama-bench (pp512, tg128). One step of training predicts the next token at every place of
a batch of random sequences, and updates all weights, or only LoRA's adapters. docs/method-details.md has the details.
The model is that of the transformers library, in MLX that of mlx-lm. `make settings` explains the settings.
"""

import functools
import sys
from dataclasses import dataclass, replace

from bench.run import main
from bench.settings import TRAINING, SettingError
from bench.workloads import data
from bench.workloads.workload import BYTES, Workload, find_model, flops_of_phase

COMPARED_LENGTH = 64  # most tokens of a sequence that is compared with the CPU if it is too slow for longer ones
OURS = ("rope_theta", "rope_factor", "is_qwen", "num_experts", "num_experts_per_tok", "lora_rank")  # not for config()


@dataclass(frozen=True)
class Decoder:
    """Published sizes of a Llama-like decoder: RMSNorm, rotary positions, gated feed-forward, no biases.

    The names are those of a config.json, which the transformers library and mlx-lm share.
    """

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int  # each serves num_attention_heads / num_key_value_heads query heads
    head_dim: int
    intermediate_size: int  # width inside the feed-forward part, or inside each expert
    vocab_size: int
    max_position_embeddings: int  # most tokens in a sequence
    rope_theta: float  # base of the rotary positions
    rope_factor: float = 1.0  # Llama 3's scaling of positions from 8192 on
    tie_word_embeddings: bool = True  # the output matmul uses the embedding table
    is_qwen: bool = False  # Qwen 3 normalises each head's query and key
    rms_norm_eps: float = 1e-5
    num_experts: int = 1  # feed-forward parts of a layer; a router chooses among several
    num_experts_per_tok: int = 1
    lora_rank: int = 0  # rank of the adapters of q, k, v and o, the only trained weights; 0: all are trained

    def config(self):
        """Return the entries of a config.json, without those of the positions."""
        entries = {name: value for name, value in vars(self).items() if name not in OURS}
        if self.num_experts > 1:
            entries |= {"num_experts": self.num_experts, "num_experts_per_tok": self.num_experts_per_tok}
            entries |= {"moe_intermediate_size": self.intermediate_size, "norm_topk_prob": True}
            entries |= {"decoder_sparse_step": 1, "mlp_only_layers": []}  # each layer has experts
        return entries

    def rope_scaling(self):
        """Return Llama 3's scaling of positions in the same words; {} without it."""
        if self.rope_factor == 1:
            return {}
        lengths = {"factor": self.rope_factor, "original_max_position_embeddings": 8192}
        return {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0} | lengths

    def read_weights(self, sizes, tokens):
        """Return the bytes of the weights that a step of some tokens reads, of {name: bytes}.

        A token uses k of N experts, so it leaves an expert out with a probability of 1 - k / N, and t tokens all do so
        with (1 - k / N) ** t. Random weights route like that; trained ones favour some experts, and read fewer.
        """
        share = 1 - (1 - self.num_experts_per_tok / self.num_experts) ** tokens
        experts = [name for name in sizes if "experts" in name or "switch_mlp" in name]  # in PyTorch, in MLX
        return sum(sizes.values()) - round((1 - share) * sum(map(sizes.get, experts)))


QWEN = {"is_qwen": True, "rms_norm_eps": 1e-6}
EXPERTS = {"tie_word_embeddings": False, "num_experts": 128, "num_experts_per_tok": 8} | QWEN
# config.json on huggingface.co: HuggingFaceTB/SmolLM2-135M, Qwen/Qwen3-*, meta-llama/Llama-3.*
DECODERS = {
    "smollm2-135m": Decoder(30, 576, 9, 3, 64, 1536, 49_152, 8192, 1e5),
    "qwen3-0.6b": Decoder(28, 1024, 16, 8, 128, 3072, 151_936, 40_960, 1e6, **QWEN),
    "llama-3.2-1b": Decoder(16, 2048, 32, 8, 64, 8192, 128_256, 131_072, 5e5, rope_factor=32),
    "llama-3.2-3b": Decoder(28, 3072, 24, 8, 128, 8192, 128_256, 131_072, 5e5, rope_factor=32),
    "qwen3-4b": Decoder(36, 2560, 32, 8, 128, 9728, 151_936, 40_960, 1e6, **QWEN),
    "llama-3.1-8b": Decoder(32, 4096, 32, 8, 128, 14_336, 128_256, 131_072, 5e5, 8, tie_word_embeddings=False),
    "qwen3-30b-a3b": Decoder(48, 2048, 32, 4, 128, 768, 151_936, 40_960, 1e6, **EXPERTS),
}


def llm_workload(settings):
    """Describe the work of a phase: a step of decode adds a token to each sequence, others take whole sequences."""
    model = find_model(settings.model, DECODERS)
    decoder = replace(DECODERS[model], lora_rank=settings.lora_rank or 0)
    depth = settings.depth or 0  # decode begins after these tokens
    new = settings.new_tokens or settings.prompt_tokens
    sequences = settings.batch_size
    is_training = settings.phase in TRAINING
    is_decode = settings.phase == "decode"
    forward, backward = count_flops(decoder, new, depth, logits=1 if settings.phase == "prefill" else new)
    # The scales of quantised weights are not counted, so that nothing that fits is refused.
    size = BYTES[settings.precision]
    resident_bytes = count_parameters(decoder) * (settings.weight_bits or 8 * size) // 8
    if is_training:
        if decoder.num_experts > 1:
            raise SettingError(f"PHASE={settings.phase!r} is not measured for {model}: set PHASE=prefill,decode")
        # Each trained weight has a gradient and the optimizer's state; those of adapters are not among the parameters.
        tensors = (1 if settings.optimizer == "sgd" else 3) + (decoder.lora_rank > 0)
        resident_bytes += tensors * count_trainable(decoder) * size
    else:
        resident_bytes += sequences * cache_bytes(decoder, depth + new, settings.precision)
    # Besides the weights, a step of decode reads each sequence's cache at its mean length.
    mean_cache = sequences * cache_bytes(decoder, 2 * depth + new + 1, settings.precision) // 2
    make_batches = functools.partial(data.token_batches, decoder.vocab_size, "next" if is_training else None)
    return Workload(
        name="llm",
        model=model,
        unit="tokens",
        items_per_step=sequences if is_decode else sequences * new,
        make_batches=functools.partial(make_batches, depth + new),
        make_checked=functools.partial(make_batches, min(depth + new, COMPARED_LENGTH)),
        loss="cross_entropy" if is_training else None,
        sizes=decoder,
        parameters=count_trainable(decoder),
        flops_per_item=flops_of_phase(settings.phase, forward // new, backward // new),
        resident_bytes=resident_bytes,
        bytes_per_step=mean_cache if is_decode else None,
        columns={"data": "synthetic"} | ({"sequence_length": new, "prompt_tokens": None} if is_training else {}),
    )


def matmul_weights(decoder):
    """Count the weights of a layer that multiply a token: query, key, value, output, router, three of each expert."""
    attention = 2 * (decoder.num_attention_heads + decoder.num_key_value_heads) * decoder.head_dim * decoder.hidden_size
    router = decoder.num_experts * decoder.hidden_size if decoder.num_experts > 1 else 0
    return attention + router + 3 * decoder.num_experts_per_tok * decoder.hidden_size * decoder.intermediate_size


def count_parameters(decoder):
    """Count the parameters; a table that is both embedding and output counts once."""
    norms = 2 * decoder.hidden_size + (2 * decoder.head_dim if decoder.is_qwen else 0)
    tables = (1 if decoder.tie_word_embeddings else 2) * decoder.vocab_size * decoder.hidden_size
    matrices = matmul_weights(replace(decoder, num_experts_per_tok=decoder.num_experts))
    return tables + decoder.num_hidden_layers * (matrices + norms) + decoder.hidden_size


def count_trainable(decoder):
    """Count the parameters that training changes: all, or LoRA's r (inputs + outputs) for each of q, k, v and o."""
    heads = (decoder.num_attention_heads + decoder.num_key_value_heads) * decoder.head_dim
    adapters = decoder.num_hidden_layers * decoder.lora_rank * (4 * decoder.hidden_size + 2 * heads)
    return adapters or count_parameters(decoder)


def count_flops(decoder, tokens, depth=0, logits=1):
    """Count the FLOPs of `tokens` tokens after `depth` tokens in the cache: (forward, backward).

    A multiply-add is 2 FLOPs. Each token passes through the matmuls, and attends to itself and to all tokens before it
    (scores and weighted values). Logits are computed for the last token only, or for more of them.

    A backward pass through a matmul of two trained or computed operands costs twice its forward pass: a gradient for
    each. LoRA needs none of frozen weights, so their matmuls cost once. The input of the first layer is then frozen
    too: its q, k and v give no gradient to it.
    """
    layers, width, rank = decoder.num_hidden_layers, decoder.hidden_size, decoder.lora_rank
    pairs = tokens * depth + tokens * (tokens + 1) // 2
    attention = 4 * layers * pairs * decoder.num_attention_heads * decoder.head_dim
    matmuls = 2 * (layers * tokens * matmul_weights(decoder) + logits * decoder.vocab_size * width)
    if not rank:
        return matmuls + attention, 2 * (matmuls + attention)
    adapters = 2 * tokens * count_trainable(decoder)
    heads = decoder.num_attention_heads + 2 * decoder.num_key_value_heads
    to_input = 2 * tokens * width * (heads * decoder.head_dim + 3 * rank)
    return matmuls + attention + adapters, matmuls + 2 * (attention + adapters) - to_input


def cache_bytes(decoder, tokens, precision):
    """Return the size in bytes of the keys and values of `tokens` tokens."""
    return 2 * decoder.num_hidden_layers * decoder.num_key_value_heads * decoder.head_dim * tokens * BYTES[precision]


if __name__ == "__main__":
    sys.exit(main("llm", llm_workload))
