"""Language models in PyTorch: the transformers library's own classes, its static cache, random weights, LoRA."""

import itertools
from typing import Any

import torch
from torch.nn import functional

from bench.frameworks import base, refuse_old
from bench.workloads.workload import LORA_PROJECTIONS, LORA_SCALE

POOL_NUMBERS = 2**24


@torch.no_grad()
def draw_weights(module, device, dtype):
    """Fill a module with random weights that keep the variance of what passes them; norms are ones, biases zeros.

    All are cut from one pool of numbers, because drawing eight billion takes a CPU a minute.
    """
    pool = torch.randn(POOL_NUMBERS, device=device, dtype=dtype)
    starts = itertools.count(0, 65_537)
    for name, weights in module.named_parameters():
        if weights.ndim == 1:
            weights.fill_(not name.endswith("bias"))
            continue
        start = next(starts) % (POOL_NUMBERS // 2)
        for part in weights.view(-1).split(POOL_NUMBERS // 2):
            torch.mul(pool[start : start + len(part)], weights[0].numel() ** -0.5, out=part)


class Adapted(torch.nn.Module):
    """A frozen projection with a trained adapter of low rank: y = W x + alpha / rank * B (A x).

    LoRA, Hu et al. 2021 (arXiv 2106.09685). A and B have the precision of W. B starts at random numbers instead of
    zero: A would have no gradient.
    """

    def __init__(self, projection, rank):
        super().__init__()
        self.projection = projection
        outputs, inputs = projection.weight.shape
        self.a = torch.nn.Parameter(torch.empty(rank, inputs))
        self.b = torch.nn.Parameter(torch.empty(outputs, rank))

    def forward(self, x):
        adapter = functional.linear(functional.linear(x, self.a), self.b)
        return self.projection(x) + LORA_SCALE * adapter


class Decoder(torch.nn.Module):
    """A decoder of the transformers library that returns only logits, without memory until fill()."""

    def __init__(self, workload):
        super().__init__()
        refuse_old("transformers", "5.4")  # an older StaticCache has no cumulative_length
        import transformers  # takes ten seconds, so only if needed
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        sizes = workload.sizes
        rotary = {"rope_type": "default", "rope_theta": sizes.rope_theta} | sizes.rope_scaling()
        name = "Qwen3" if sizes.is_qwen else "Llama"
        attention = "sdpa"
        if workload.loss:
            # Without a cache, "sdpa" reads the positions back in each step to find packed sequences, which we have not.
            attention = "causal"  # without a mask, because none is registered under this name
            transformers.AttentionInterface.register(attention, sdpa_attention_forward)
        others = {"rope_parameters": rotary, "attn_implementation": attention}
        config = getattr(transformers, f"{name}Config")(**sizes.config(), **others)
        with torch.device("meta"):
            self.decoder = getattr(transformers, f"{name}ForCausalLM")(config).requires_grad_(not sizes.lora_rank)
            if sizes.lora_rank:
                for layer, name in itertools.product(self.decoder.model.layers, LORA_PROJECTIONS):
                    projection = getattr(layer.self_attn, name)
                    setattr(layer.self_attn, name, Adapted(projection, sizes.lora_rank))
        if sizes.checkpointing:
            self.decoder.activation_checkpointing_enable({"use_reentrant": False})

    @property
    def checked_weight(self):
        """Return the weight that is read after a window: in 16 bits training moves a matrix, and a norm stays at 1."""
        return [weight for name, weight in self.named_parameters() if "o_proj" in name and weight.requires_grad][-1]

    def fill(self, device, dtype):
        """Allocate random weights, once and in their type: twice the weights may not fit."""
        self.to(dtype).to_empty(device=device)
        self.decoder.tie_weights()
        draw_weights(self, device, dtype)

    def _apply(self, fn, recurse=True):
        """Move or convert the weights; the rotary frequencies are computed again, in float32 in every precision."""
        super()._apply(fn, recurse)
        with torch.device(next(self.parameters()).device):
            self.decoder.model.rotary_emb = type(self.decoder.model.rotary_emb)(config=self.decoder.config)
        return self

    def forward(self, ids, **cache):
        return self.decoder(input_ids=ids, use_cache="past_key_values" in cache, **cache).logits


class CachedModel(base.CachedModel):
    """A decoder with its static cache. The contract is in base.py."""

    cache: Any  # a StaticCache

    def __init__(self, context, decoder):
        self.context = context
        self.uncompiled = decoder.eval()
        self.parameters = sum(weight.numel() for weight in decoder.parameters())
        self.module = context.compiled(decoder)

    def open_cache(self, sequences, tokens):
        from transformers import StaticCache

        config = self.uncompiled.decoder.config
        self.cache = StaticCache(config=config, max_cache_len=tokens)
        shape = sequences, config.num_key_value_heads, config.head_dim
        with torch.inference_mode():
            self.cache.early_initialization(*shape, self.context.dtype, torch.device(self.context.device))

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
        return module(tokens, past_key_values=self.cache, logits_to_keep=1)[:, -1]
