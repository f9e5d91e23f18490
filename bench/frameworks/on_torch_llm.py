"""Language models in PyTorch: the transformers library's own classes, its static cache, and random weights."""

import itertools
from typing import Any

import torch

from bench.frameworks import base, refuse_old

POOL_NUMBERS = 2**24


def build_llm(workload):
    """Build a decoder of the transformers library on the meta device: shapes without memory."""
    refuse_old("transformers", "5")  # an older StaticCache has other arguments
    import transformers  # takes ten seconds, so only if needed

    sizes = workload.sizes
    rotary: dict = {"rope_type": "default", "rope_theta": sizes.rope_theta}
    if sizes.rope_factor > 1:
        rotary |= {"rope_type": "llama3", "factor": sizes.rope_factor, "original_max_position_embeddings": 8192}
        rotary |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    name = "Qwen3" if sizes.is_qwen else "Llama"
    config = getattr(transformers, f"{name}Config")(
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_hidden_layers=sizes.num_layers,
        num_attention_heads=sizes.num_heads,
        num_key_value_heads=sizes.num_kv_heads,
        head_dim=sizes.head_dim,
        max_position_embeddings=sizes.max_position_embeddings,
        rms_norm_eps=sizes.norm_epsilon,
        rope_parameters=rotary,
        tie_word_embeddings=sizes.tie_word_embeddings,
        attn_implementation="sdpa",
    )
    with torch.device("meta"):
        return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def allocate(module, device, dtype):
    """Give a module of the meta device its memory, once and in its final type: twice the weights may not fit."""
    module.to(dtype).to_empty(device=device)
    module.tie_weights()
    with torch.device(device):  # the rotary frequencies are computed, not loaded, and stay in float32
        module.model.rotary_emb = type(module.model.rotary_emb)(config=module.config)
    return module


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

    @property
    def note(self):
        if not self.context.compile:
            return ""
        # With a static cache the compiled attention gets an explicit mask, and copies of the keys and values.
        more = "compiled, attention reads more bytes than are counted"
        return "; ".join(filter(None, [more, self.context.note_of_graphs()]))

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
