"""Language models in MLX: mlx-lm's own classes and cache, random weights, LoRA."""

from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_map

from bench.frameworks import base
from bench.frameworks.on_mlx_networks import count_parameters
from bench.workloads.workload import LORA_PROJECTIONS, LORA_SCALE


def build_llm(workload):
    """Build a decoder of mlx-lm; its weights have no memory before they are evaluated."""
    from mlx_lm.models import llama, qwen3  # takes seconds, so only if needed

    sizes = workload.sizes
    name, library = ("qwen3", qwen3) if sizes.is_qwen else ("llama", llama)
    rope = {"rope_theta": sizes.rope_theta, "rope_scaling": sizes.rope_scaling() or None}
    return library.Model(library.ModelArgs(model_type=name, **sizes.config(), **rope))


def raise_wired_limit(context):
    """Raise the limit of wired memory on a Mac, as mlx-lm does, and note that."""
    from mlx_lm.utils import maybe_set_recommended_wired_limit

    if maybe_set_recommended_wired_limit() is not None:
        context.notes.append("the wired limit of memory is the recommended one, as mlx-lm sets it")


def fill(module, dtype):
    """Fill in random weights that keep the variance of what passes them; norms are ones. Lazy."""
    draw = lambda old: mx.random.normal(old.shape, dtype, scale=old.shape[1] ** -0.5)  # noqa: E731
    module.update(tree_map(lambda old: mx.ones(old.shape, dtype) if old.ndim == 1 else draw(old), module.parameters()))
    return module


class Adapted(nn.Module):
    """A frozen projection with a trained adapter of low rank, as in on_torch_llm.py."""

    def __init__(self, projection, rank):
        super().__init__()
        self.projection, like = projection, projection.weight
        sizes, scale = ((rank, like.shape[1]), (like.shape[0], rank)), like.shape[1] ** -0.5
        self.a, self.b = (mx.random.normal(size, like.dtype, scale=scale) for size in sizes)

    def __call__(self, x):
        return self.projection(x) + LORA_SCALE * ((x @ self.a.T) @ self.b.T)


class Checkpointed(nn.Module):
    """A layer that keeps only its input, and is computed again in the backward pass."""

    use_sliding = False  # mlx-lm asks each layer for it

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def __call__(self, *inputs, **others):
        return nn.utils.checkpoint(self.layer)(*inputs, **others)


class Trainable(nn.Module):
    """A decoder with random weights that returns the logits of all tokens, and trains as the workload's sizes say."""

    def __init__(self, workload, dtype=mx.float32):
        super().__init__()
        self.decoder, sizes = fill(build_llm(workload), dtype), workload.sizes
        if sizes.lora_rank:
            self.decoder.freeze()
        layers = self.decoder.model.layers
        for place, layer in enumerate(layers):
            for name in LORA_PROJECTIONS if sizes.lora_rank else ():
                layer.self_attn[name] = Adapted(layer.self_attn[name], sizes.lora_rank)
            if sizes.checkpointing:
                layers[place] = Checkpointed(layer)

    def __call__(self, ids):
        return self.decoder(ids)


class CachedModel(base.CachedModel):
    """A decoder with mlx-lm's cache, which grows by 256 tokens. The contract is in base.py."""

    cache: Any  # a KVCache for each layer

    def __init__(self, context, workload):
        from mlx_lm.models.cache import make_prompt_cache

        self.context, self.module, self.make_cache = context, build_llm(workload), make_prompt_cache
        self.parameters = count_parameters(self.module)
        mx.eval(fill(self.module, context.dtype).parameters())
        raise_wired_limit(context)

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
