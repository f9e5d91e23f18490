"""Language models that generate: their published shapes, and what one of their steps computes and reads."""

from dataclasses import dataclass

BYTES = {"float64": 8, "float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2}  # of a number, by precision


@dataclass(frozen=True)
class Decoder:
    """Published sizes of a Llama-like decoder: RMSNorm, rotary positions, gated feed-forward, no biases."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int  # heads of keys and values; each serves num_heads / num_kv_heads query heads
    head_dim: int
    intermediate_size: int  # width inside the feed-forward part
    vocab_size: int
    max_position_embeddings: int  # most tokens in a sequence
    rope_theta: float  # base of the rotary positions
    rope_factor: float = 1.0  # Llama 3's scaling of positions from 8192 on
    tie_word_embeddings: bool = True  # the output matmul uses the embedding table
    is_qwen: bool = False  # Qwen 3 normalises each head's query and key
    norm_epsilon: float = 1e-5


# config.json of each repository on huggingface.co.
DECODERS = {
    # HuggingFaceTB/SmolLM2-135M
    "smollm2-135m": Decoder(30, 576, 9, 3, 64, 1536, 49_152, 8192, 1e5),
    # Qwen/Qwen3-0.6B
    "qwen3-0.6b": Decoder(28, 1024, 16, 8, 128, 3072, 151_936, 40_960, 1e6, is_qwen=True, norm_epsilon=1e-6),
    # meta-llama/Llama-3.2-1B
    "llama-3.2-1b": Decoder(16, 2048, 32, 8, 64, 8192, 128_256, 131_072, 5e5, rope_factor=32),
    # meta-llama/Llama-3.2-3B
    "llama-3.2-3b": Decoder(28, 3072, 24, 8, 128, 8192, 128_256, 131_072, 5e5, rope_factor=32),
    # Qwen/Qwen3-4B
    "qwen3-4b": Decoder(36, 2560, 32, 8, 128, 9728, 151_936, 40_960, 1e6, is_qwen=True, norm_epsilon=1e-6),
    # meta-llama/Llama-3.1-8B
    "llama-3.1-8b": Decoder(
        32, 4096, 32, 8, 128, 14_336, 128_256, 131_072, 5e5, rope_factor=8, tie_word_embeddings=False
    ),
}


def matmul_weights(decoder):
    """Count the weights of one layer's matmuls: query and output, key and value, and three of the feed-forward part."""
    attention = 2 * (decoder.num_heads + decoder.num_kv_heads) * decoder.head_dim * decoder.hidden_size
    return attention + 3 * decoder.hidden_size * decoder.intermediate_size


def count_parameters(decoder):
    """Count the trainable parameters; a table that is both embedding and output counts once."""
    norms = 2 * decoder.hidden_size + (2 * decoder.head_dim if decoder.is_qwen else 0)
    tables = (1 if decoder.tie_word_embeddings else 2) * decoder.vocab_size * decoder.hidden_size
    return tables + decoder.num_layers * (matmul_weights(decoder) + norms) + decoder.hidden_size


def prefill_flops(decoder, tokens):
    """Count the FLOPs of a sequence of `tokens` tokens in an empty cache; 1 multiply-add = 2 FLOPs.

    Each token passes through the matmuls, and attends to itself and to all tokens before it (scores and weighted
    values). Logits are computed for the last token only.
    """
    pairs = tokens * (tokens + 1) // 2
    attention = 2 * pairs * decoder.num_heads * decoder.head_dim
    layers = decoder.num_layers * (tokens * matmul_weights(decoder) + attention)
    return 2 * (layers + decoder.vocab_size * decoder.hidden_size)


def decode_flops(decoder, depth, new_tokens):
    """Count the FLOPs of one new token: the mean over new_tokens tokens after `depth` tokens in the cache."""
    attended = 2 * depth + new_tokens + 1  # twice the mean
    layers = decoder.num_layers * (matmul_weights(decoder) + attended * decoder.num_heads * decoder.head_dim)
    return 2 * (layers + decoder.vocab_size * decoder.hidden_size)


def cache_bytes(decoder, tokens, precision):
    """Return the size in bytes of the keys and values of `tokens` tokens."""
    return 2 * decoder.num_layers * decoder.num_kv_heads * decoder.head_dim * tokens * BYTES[precision]


def weight_bytes(decoder, precision):
    """Return the size of all weights in bytes."""
    return count_parameters(decoder) * BYTES[precision]


def decode_bytes(decoder, batch_size, depth, new_tokens, precision):
    """Count the bytes that a decode step must read: all weights once, and each sequence's cache at its mean length.

    A table that is only an embedding is left out, because a step reads a few of its rows; a tied one is the output too.
    """
    only_embeds = 0 if decoder.tie_word_embeddings else decoder.vocab_size * decoder.hidden_size * BYTES[precision]
    weights = weight_bytes(decoder, precision) - only_embeds
    return weights + batch_size * cache_bytes(decoder, 2 * depth + new_tokens + 1, precision) // 2
