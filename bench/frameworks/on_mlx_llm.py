"""Language models in MLX: mlx-lm's own classes and cache, and random weights."""

from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from bench.frameworks import base
from bench.frameworks.on_mlx_networks import count_parameters


def build_llm(workload):
    """Build a decoder of mlx-lm; its weights have no memory before they are evaluated."""
    from mlx_lm.models import llama, qwen3  # takes seconds, so only if needed

    sizes, scaling = workload.sizes, None
    if sizes.rope_factor > 1:
        scaling = {"rope_type": "llama3", "factor": sizes.rope_factor, "original_max_position_embeddings": 8192}
        scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    library = qwen3 if sizes.is_qwen else llama
    return library.Model(
        library.ModelArgs(
            model_type="qwen3" if sizes.is_qwen else "llama",
            vocab_size=sizes.vocab_size,
            hidden_size=sizes.hidden_size,
            intermediate_size=sizes.intermediate_size,
            num_hidden_layers=sizes.num_layers,
            num_attention_heads=sizes.num_heads,
            num_key_value_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            max_position_embeddings=sizes.max_position_embeddings,
            rms_norm_eps=sizes.norm_epsilon,
            rope_theta=sizes.rope_theta,
            rope_scaling=scaling,
            tie_word_embeddings=sizes.tie_word_embeddings,
        )
    )


class CachedModel(base.CachedModel):
    """A decoder with mlx-lm's cache, which grows by 256 tokens. The contract is in base.py."""

    cache: Any  # a KVCache for each layer

    def __init__(self, context, workload):
        from mlx_lm.models.cache import make_prompt_cache
        from mlx_lm.utils import maybe_set_recommended_wired_limit

        self.context, self.module, self.make_cache = context, build_llm(workload), make_prompt_cache
        self.parameters, self.note = count_parameters(self.module), context.own_note
        # Random weights that keep the variance of what passes them; norms are ones.
        draw = lambda old: mx.random.normal(old.shape, context.dtype, scale=old.shape[1] ** -0.5)  # noqa: E731
        self.module.update(
            tree_map(lambda old: mx.ones(old.shape, context.dtype) if old.ndim == 1 else draw(old), self._weights())
        )
        mx.eval(self._weights())
        if maybe_set_recommended_wired_limit() is not None:
            self.note = "the wired limit of memory is the recommended one, as mlx-lm sets it"

    def _weights(self):
        return self.module.parameters()

    def open_cache(self, sequences, tokens):
        self.cache = self.make_cache(self.module)

    def seek(self, length):
        for layer in self.cache:
            layer.trim(layer.offset - length)

    def extend(self, tokens):
        logits = self._logits(tokens, self.cache)
        mx.async_eval(logits, [layer.state for layer in self.cache])
        return logits

    def extend_uncompiled(self, tokens):
        return self.extend(tokens)

    def _logits(self, tokens, cache):
        """Return the last token's logits; mlx-lm's own call would compute those of all tokens of a prompt."""
        last, body = self.module.model(tokens, cache)[:, -1], self.module.model
        return body.embed_tokens.as_linear(last) if self.module.args.tie_word_embeddings else self.module.lm_head(last)

    def predict_on_cpu(self, tokens):
        with mx.stream(mx.cpu):
            return np.array(self._logits(tokens, None).astype(mx.float32))
