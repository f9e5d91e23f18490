"""Language models in PyTorch: the transformers library's own classes, its static cache, random weights, LoRA."""

import itertools
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from bench.frameworks import base, refuse_old
from bench.workloads.workload import LORA_PROJECTIONS, LORA_SCALE

POOL_NUMBERS = 2**24


def build_llm(workload):
    """Build a decoder of the transformers library on the meta device: shapes without memory."""
    refuse_old("transformers", "5")  # an older StaticCache has other arguments
    import transformers  # takes ten seconds, so only if needed

    sizes = workload.sizes
    rotary = {"rope_type": "default", "rope_theta": sizes.rope_theta} | sizes.rope_scaling()
    name, others = "Qwen3" if sizes.is_qwen else "Llama", {"rope_parameters": rotary, "attn_implementation": "sdpa"}
    config = getattr(transformers, f"{name}Config")(**sizes.config(), **others)
    with torch.device("meta"):
        return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def allocate(module, device, dtype):
    """Give a module of the meta device its memory, once and in its final type: twice the weights may not fit."""
    module.to(dtype).to_empty(device=device)
    module.tie_weights()
    reset_positions(module, device)
    return module


def reset_positions(module, device):
    """Compute the rotary frequencies of a decoder again, because they stay in float32 in every precision."""
    with torch.device(device):
        module.model.rotary_emb = type(module.model.rotary_emb)(config=module.config)


@torch.no_grad()
def fill(module):
    """Fill in random weights that keep the variance of what passes them; norms are ones.

    All are cut from one pool of numbers: to draw eight billion takes a CPU a minute.
    """
    first = next(module.parameters())
    pool, starts = torch.randn(POOL_NUMBERS, device=first.device, dtype=first.dtype), itertools.count(0, 65_537)
    for weights in module.parameters():
        if weights.ndim == 1:
            weights.fill_(1)
            continue
        start = next(starts) % (POOL_NUMBERS // 2)
        for part in weights.view(-1).split(POOL_NUMBERS // 2):
            torch.mul(pool[start : start + len(part)], weights.shape[1] ** -0.5, out=part)


class Adapted(torch.nn.Module):
    """A frozen projection with a trained adapter of low rank: y = W x + alpha / rank * B (A x).

    LoRA, Hu et al. 2021 (arXiv 2106.09685). A and B have the precision of W. B starts at small random numbers instead
    of zero: A would have no gradient, and nothing would show that its gradient is right.
    """

    def __init__(self, projection, rank):
        super().__init__()
        self.projection = projection
        like = projection.weight
        a, b = like.new_empty(rank, like.shape[1]), like.new_empty(like.shape[0], rank)
        self.a, self.b = (torch.nn.Parameter(each.normal_(std=like.shape[1] ** -0.5)) for each in (a, b))

    def forward(self, x):
        adapter = functional.linear(functional.linear(x, self.a), self.b)
        return self.projection(x) + LORA_SCALE * adapter


class Checkpointed(torch.nn.Module):
    """A layer that keeps only its input, and is computed again in the backward pass."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, *inputs, **others):
        return checkpoint(self.layer, *inputs, use_reentrant=False, **others)


class Trainable(torch.nn.Module):
    """A decoder with random weights that returns the logits of all tokens, and trains as the workload's sizes say."""

    def __init__(self, workload, device="cpu", dtype=torch.float32):
        super().__init__()
        self.decoder, sizes = allocate(build_llm(workload), device, dtype), workload.sizes
        fill(self.decoder)
        self.decoder.requires_grad_(not sizes.lora_rank)
        layers = self.decoder.model.layers
        for place, layer in enumerate(layers):
            for name in LORA_PROJECTIONS if sizes.lora_rank else ():
                setattr(layer.self_attn, name, Adapted(getattr(layer.self_attn, name), sizes.lora_rank))
            if sizes.checkpointing:
                layers[place] = Checkpointed(layer)

    @property
    def probe(self):
        """Return the weight that is read after a window: in 16 bits training moves a matrix, and a norm stays at 1."""
        return [weight for name, weight in self.named_parameters() if "o_proj" in name and weight.requires_grad][-1]

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        reset_positions(self.decoder, self.probe.device)
        return self

    def forward(self, ids):
        return self.decoder(input_ids=ids, use_cache=False).logits


class CachedModel(base.CachedModel):
    """A decoder with its static cache. The contract is in base.py."""

    cache: Any  # a StaticCache

    def __init__(self, context, workload):
        from transformers import StaticCache

        self.context, self.new_cache = context, StaticCache
        self.uncompiled = allocate(build_llm(workload), context.device, context.dtype)
        fill(self.uncompiled)
        self.parameters = sum(p.numel() for p in self.uncompiled.parameters())
        self.module = context.compiled(self.uncompiled)
        if context.compile:
            # With a static cache the compiled attention gets an explicit mask, and copies of the keys and values.
            context.notes.append("compiled, attention reads more bytes than are counted")

    def open_cache(self, sequences, tokens):
        config, where = self.uncompiled.config, (self.context.dtype, torch.device(self.context.device))
        self.cache = self.new_cache(config=config, max_cache_len=tokens)
        with torch.inference_mode():
            self.cache.early_initialization(sequences, config.num_key_value_heads, config.head_dim, *where)

    @torch.inference_mode()
    def seek(self, length):
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(length)

    def extend(self, tokens):
        return self._run(self.module, tokens)

    def extend_uncompiled(self, tokens):
        return self._run(self.uncompiled, tokens)

    @torch.inference_mode()
    def _run(self, module, tokens):
        return module(input_ids=tokens, past_key_values=self.cache, logits_to_keep=1).logits[:, -1]

    @torch.inference_mode()
    def predict_on_cpu(self, tokens):
        self.uncompiled.to("cpu")
        logits = self.uncompiled(input_ids=tokens.cpu(), use_cache=False, logits_to_keep=1).logits[:, -1]
        self.uncompiled.to(self.context.device)
        return logits.float().numpy()

    def trace_count(self):
        return self.context.trace_count()
