"""Language models in MLX: mlx-lm's own classes, cache and LoRA, with random weights."""

import itertools

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten, tree_map

from bench.workloads.data import POOL_STRIDE, POOL_VALUES
from bench.workloads.workload import LORA_PROJECTIONS, LORA_SCALE

PROBED_ROWS = 32  # MLX's kernel for CPUs would take half a minute for all
GROUP_SIZE = 64  # weights that share a scale and a bias, as in mlx-lm


def build_llm(workload):
    """Build a decoder of mlx-lm with random weights, which have no memory before they are evaluated.

    It returns the logits of all tokens, and trains as the workload's sizes say. Weights keep the variance of what
    passes them; norms are ones. All are cut from one pool of values: drawing a large matrix would need four times its
    memory.
    """
    from mlx_lm.models import llama, qwen3, qwen3_moe  # takes seconds, so only if needed
    from mlx_lm.utils import maybe_set_recommended_wired_limit

    maybe_set_recommended_wired_limit()  # on a Mac, as mlx-lm does
    sizes = workload.sizes
    library = qwen3_moe if sizes.num_experts > 1 else qwen3 if sizes.is_qwen else llama
    others = {"rope_theta": sizes.rope_theta, "rope_scaling": sizes.rope_scaling() or None}
    others["model_type"] = library.__name__.rpartition(".")[2]
    module = library.Model(library.ModelArgs(**sizes.config(), **others))
    pool = mx.random.normal((POOL_VALUES,))
    half = POOL_VALUES // 2
    starts = (start % half for start in itertools.count(0, POOL_STRIDE))

    def draw(old):
        if old.ndim == 1:
            return mx.ones(old.shape)
        places = zip(range(0, old.size, half), starts, strict=False)  # a start for each part: experts must differ
        values = mx.concatenate([pool[start : start + min(half, old.size - drawn)] for drawn, start in places])
        return values.reshape(old.shape) * old.shape[-1] ** -0.5

    module.update(tree_map(draw, module.parameters()))
    if sizes.lora_rank:
        add_adapters(module, sizes)
    return module


def add_adapters(module, sizes):
    """Freeze a decoder, and add mlx-lm's LoRA to its attention."""
    from mlx_lm.tuner.utils import linear_to_lora_layers

    module.freeze()
    keys = {f"self_attn.{name}" for name in LORA_PROJECTIONS}
    config = {"rank": sizes.lora_rank, "scale": LORA_SCALE, "dropout": 0.0, "keys": keys}
    linear_to_lora_layers(module, sizes.num_hidden_layers, config)
    # mlx-lm starts B at zero: A would have no gradient, and the adapters would not show in the output.
    scale = sizes.hidden_size**-0.5
    module.update(tree_map(lambda old: mx.random.normal(old.shape, scale=scale), module.trainable_parameters()))


def quantise(module, bits):
    """Quantise all matrices, routers to 8 bits as mlx-lm; each has memory in full only until it is quantised."""
    from mlx_lm.utils import quantize_model

    quantize_model(module, {}, GROUP_SIZE, bits)
    for _, layer in tree_flatten(module.leaf_modules(), is_leaf=nn.Module.is_module):
        mx.eval(layer.parameters())


def probe_quantised(left, right, bits):
    """Multiply by quantised weights, as DeviceContext.probe() does, and add what quantising has taken away."""
    left = left[:PROBED_ROWS]
    quantised = mx.quantize(right.T, GROUP_SIZE, bits)
    output = mx.quantized_matmul(left, *quantised, group_size=GROUP_SIZE, bits=bits)
    with mx.stream(mx.cpu):
        values, *scales_and_biases = quantised
        kept = mx.dequantize(values, *(each.astype(mx.float32) for each in scales_and_biases), GROUP_SIZE, bits)
        lost = left.astype(mx.float32) @ (right.T - kept).T
    return np.array(output.astype(mx.float32) + lost), output.dtype == mx.float16
