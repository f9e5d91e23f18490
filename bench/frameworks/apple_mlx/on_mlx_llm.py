"""Language models in MLX: mlx-lm's own classes, cache and LoRA, with random weights."""

import itertools
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten, tree_map

from bench.frameworks import base
from bench.frameworks.apple_mlx.on_mlx_networks import leaves
from bench.workloads.data import POOL_NUMBERS, POOL_STRIDE
from bench.workloads.workload import LORA_PROJECTIONS, LORA_SCALE

TENSORS = ("weight", "scales", "biases")  # of a quantised layer
PROBED_ROWS = 32  # MLX's kernel for CPUs would take half a minute for all
GROUP_SIZE = 64  # weights that share a scale and a bias, as in mlx-lm


def build_llm(workload, dtype=mx.float32):
    """Build a decoder of mlx-lm with random weights, which have no memory before they are evaluated.

    They keep the variance of what passes them; norms are ones. All are cut from one pool of numbers: drawing a large
    matrix would need four times its memory.
    """
    from mlx_lm.models import llama, qwen3, qwen3_moe  # takes seconds, so only if needed
    from mlx_lm.utils import maybe_set_recommended_wired_limit

    maybe_set_recommended_wired_limit()  # on a Mac, as mlx-lm does
    sizes = workload.sizes
    library = qwen3_moe if sizes.num_experts > 1 else qwen3 if sizes.is_qwen else llama
    others = {"rope_theta": sizes.rope_theta, "rope_scaling": sizes.rope_scaling() or None}
    others["model_type"] = library.__name__.rpartition(".")[2]
    module = library.Model(library.ModelArgs(**sizes.config(), **others))
    pool = mx.random.normal((POOL_NUMBERS,)).astype(dtype)
    half = POOL_NUMBERS // 2
    starts = (start % half for start in itertools.count(0, POOL_STRIDE))

    def draw(old):
        if old.ndim == 1:
            return mx.ones(old.shape, dtype)
        places = zip(range(0, old.size, half), starts, strict=False)  # a start for each part: experts must differ
        numbers = mx.concatenate([pool[start : start + min(half, old.size - drawn)] for drawn, start in places])
        return numbers.reshape(old.shape) * old.shape[-1] ** -0.5

    module.update(tree_map(draw, module.parameters()))
    return module


def build_trainable(workload):
    """Build a decoder that returns the logits of all tokens, and trains as the workload's sizes say."""
    from mlx_lm.tuner.utils import linear_to_lora_layers

    module = build_llm(workload)
    sizes = workload.sizes
    if sizes.lora_rank:
        module.freeze()
        keys = {f"self_attn.{name}" for name in LORA_PROJECTIONS}
        config = {"rank": sizes.lora_rank, "scale": LORA_SCALE, "dropout": 0.0, "keys": keys}
        linear_to_lora_layers(module, sizes.num_hidden_layers, config)
        # mlx-lm starts B at zero: A would have no gradient, and the adapters would not show in the output.
        scale = sizes.hidden_size**-0.5
        module.update(tree_map(lambda old: mx.random.normal(old.shape, scale=scale), module.trainable_parameters()))
    return module


def quantise(module, bits):
    """Quantise all matrices, routers to 8 bits as mlx-lm; each has memory in full only until it is quantised."""
    from mlx_lm.utils import quantize_model

    quantize_model(module, {}, GROUP_SIZE, bits)
    for _, layer in tree_flatten(module.leaf_modules(), is_leaf=nn.Module.is_module):
        mx.eval(layer.parameters())


def dequantise(parts, bits):
    """Return the weights that quantised ones, TENSORS, stand for, in float32."""
    numbers, *scales_and_biases = parts
    return mx.dequantize(numbers, *(each.astype(mx.float32) for each in scales_and_biases), GROUP_SIZE, bits)


def probe_quantised(left, right, bits):
    """Multiply by quantised weights, as DeviceContext.probe() does, and add what quantising has taken away."""
    left = left[:PROBED_ROWS]
    quantised = mx.quantize(right.T, GROUP_SIZE, bits)
    output = mx.quantized_matmul(left, *quantised, group_size=GROUP_SIZE, bits=bits)
    with mx.stream(mx.cpu):
        lost = left.astype(mx.float32) @ (right.T - dequantise(quantised, bits)).T
    return np.array(output.astype(mx.float32) + lost), output.dtype == mx.float16


def copy_weights(module, copied):
    """Return `copied`, a new module, with the weights of a module in float32, in memory of its own."""
    copied.update(tree_map(lambda old: mx.array(np.array(old.astype(mx.float32))), module.parameters()))
    return copied.eval()


class CachedModel(base.CachedModel):
    """A decoder with mlx-lm's cache, which grows by 256 tokens. The contract is in base.py."""

    cache: Any  # a KVCache for each layer

    def __init__(self, context, workload, module=None):
        self.context = context
        self.workload = workload
        self.module = module or build_llm(workload, context.dtype)
        self.parameters = self.size = sum(each.size for each in leaves(self.module.parameters()))
        if context.weight_bits:
            quantise(self.module, context.weight_bits)
        mx.eval(self.module.parameters())
        named = tree_flatten(self.module.parameters())
        is_read = self.module.args.tie_word_embeddings
        sizes = {name: each.nbytes for name, each in named if is_read or "embed_tokens" not in name}
        self.weight_bytes = workload.sizes.read_weights(sizes, workload.items_per_step)

    def open_cache(self, sequences, tokens):
        from mlx_lm.models.cache import make_prompt_cache

        self.cache = make_prompt_cache(self.module)

    def seek(self, length):
        for layer in self.cache:
            layer.trim(layer.offset - length)

    def extend(self, tokens):
        logits = self.logits(tokens, self.cache)
        mx.async_eval(logits, [layer.state for layer in self.cache])
        return logits

    fill = extend

    def output(self, ids):
        with mx.stream(self.context.stream):
            return self.context.to_numpy(self.logits(ids))

    def on_cpu(self):
        module = copy_weights(self.module, build_llm(self.workload))
        return CachedModel(self.context.on_cpu(), self.workload, module)

    def logits(self, tokens, cache=None):
        """Return the logits of the last token; mlx-lm's own call would compute those of all."""
        body = self.module.model
        kept = body(tokens, cache)[:, -1]
        return body.embed_tokens.as_linear(kept) if self.module.args.tie_word_embeddings else self.module.lm_head(kept)
