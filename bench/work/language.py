"""Language models that generate: their published shapes, and what one of their steps computes and reads."""

from dataclasses import dataclass

BYTES = {"float64": 8, "float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2}  # of a number, by precision


@dataclass(frozen=True)
class Decoder:
    """Published sizes of a Llama-like decoder: RMSNorm, rotary positions, gated feed-forward, no biases."""

    layers: int
    width: int
    heads: int
    cached_heads: int  # of keys and values; each serves heads / cached_heads heads
    head_width: int
    inner: int  # width inside the feed-forward part
    vocabulary: int
    positions: int  # most tokens in a sequence
    theta: float  # base of the rotary positions
    stretch: float = 1.0  # Llama 3's factor of longer positions, from 8192 on
    is_tied: bool = True  # the output matmul uses the embedding table
    is_qwen: bool = False  # Qwen 3: each head's query and key are normalised
    norm_epsilon: float = 1e-5


# config.json of each repository on huggingface.co.
DECODERS = {
    # HuggingFaceTB/SmolLM2-135M
    "smollm2-135m": Decoder(30, 576, 9, 3, 64, 1536, 49_152, 8192, 1e5),
    # Qwen/Qwen3-0.6B
    "qwen3-0.6b": Decoder(28, 1024, 16, 8, 128, 3072, 151_936, 40_960, 1e6, is_qwen=True, norm_epsilon=1e-6),
    # meta-llama/Llama-3.2-1B
    "llama-3.2-1b": Decoder(16, 2048, 32, 8, 64, 8192, 128_256, 131_072, 5e5, stretch=32),
    # meta-llama/Llama-3.2-3B
    "llama-3.2-3b": Decoder(28, 3072, 24, 8, 128, 8192, 128_256, 131_072, 5e5, stretch=32),
    # Qwen/Qwen3-4B
    "qwen3-4b": Decoder(36, 2560, 32, 8, 128, 9728, 151_936, 40_960, 1e6, is_qwen=True, norm_epsilon=1e-6),
    # meta-llama/Llama-3.1-8B
    "llama-3.1-8b": Decoder(32, 4096, 32, 8, 128, 14_336, 128_256, 131_072, 5e5, stretch=8, is_tied=False),
}


def matmul_weights(decoder):
    """Weights of one layer's matmuls: query and output, key and value, and three of the feed-forward part."""
    attention = 2 * (decoder.heads + decoder.cached_heads) * decoder.head_width * decoder.width
    return attention + 3 * decoder.width * decoder.inner


def count_parameters(decoder):
    """Trainable parameters; a table that is both embedding and output counts once."""
    norms = 2 * decoder.width + (2 * decoder.head_width if decoder.is_qwen else 0)
    tables = (1 if decoder.is_tied else 2) * decoder.vocabulary * decoder.width
    return tables + decoder.layers * (matmul_weights(decoder) + norms) + decoder.width


def prefill_flops(decoder, tokens):
    """FLOPs of a sequence of so many tokens in an empty cache; 1 multiply-add = 2.

    Each token passes the matmuls, and attends to itself and all tokens before it (scores and weighted values). Only
    the last token's logits are computed.
    """
    pairs = tokens * (tokens + 1) // 2
    attention = 2 * pairs * decoder.heads * decoder.head_width
    layers = decoder.layers * (tokens * matmul_weights(decoder) + attention)
    return 2 * (layers + decoder.vocabulary * decoder.width)


def decode_flops(decoder, depth, new_tokens):
    """FLOPs of one new token, the mean of new_tokens that follow each other after depth."""
    attended = 2 * depth + new_tokens + 1  # twice the mean
    layers = decoder.layers * (matmul_weights(decoder) + attended * decoder.heads * decoder.head_width)
    return 2 * (layers + decoder.vocabulary * decoder.width)


def cache_bytes(decoder, tokens, precision):
    """Size of the keys and values of so many tokens."""
    return 2 * decoder.layers * decoder.cached_heads * decoder.head_width * tokens * BYTES[precision]


def weight_bytes(decoder, precision):
    return count_parameters(decoder) * BYTES[precision]


def decode_bytes(decoder, batch_size, depth, new_tokens, precision):
    """Bytes that a decode step has to read: all weights once, and the cache of each sequence at its mean length.

    A table that only embeds is left out, because a step reads a few of its rows; a tied one is read as the output.
    """
    only_embeds = 0 if decoder.is_tied else decoder.vocabulary * decoder.width * BYTES[precision]
    weights = weight_bytes(decoder, precision) - only_embeds
    return weights + batch_size * cache_bytes(decoder, 2 * depth + new_tokens + 1, precision) // 2
