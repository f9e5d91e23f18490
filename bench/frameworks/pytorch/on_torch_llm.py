"""Language and diffusion models in PyTorch: the libraries' own classes and cache, random weights, LoRA."""

import itertools
from typing import Any

import torch
from torch.nn import functional
from torch.torch_version import TorchVersion

from bench.frameworks.pytorch.on_torch_model import Model
from bench.settings import SettingError
from bench.workloads.data import POOL_STRIDE, POOL_VALUES
from bench.workloads.workload import LORA_PROJECTIONS, LORA_SCALE

ADDED = ("text_embeds", "time_ids")  # arguments that Stable Diffusion XL takes in a dict of their own


@torch.no_grad()
def draw_layers(module, device, dtype):
    """Allocate random weights, once and in their type, one layer at a time: yield each layer.

    They keep the variance of what passes them, and adapters change little; norms are ones, biases zeros. All are cut
    from one pool of values, because drawing eight billion takes a CPU a minute.
    """
    pool = torch.randn(POOL_VALUES, device=device, dtype=dtype)
    starts = itertools.count(0, POOL_STRIDE)
    for layer in module.to(dtype).modules():
        if all(weights.is_meta for weights in layer.parameters(recurse=False)):  # a tied one has its weights
            layer.to_empty(device=device, recurse=False)
            for name, weights in layer.named_parameters(recurse=False):
                if weights.ndim == 1:
                    weights.fill_(not name.endswith("bias"))
                    continue
                inputs = weights.shape[-1] if weights.ndim == 3 else weights[0].numel()  # 3: those of experts
                if isinstance(layer, Adapted):
                    inputs = layer.lora_a.shape[1]  # also for B: a B A x as large as W x would magnify rounding
                for part in weights.view(-1).split(POOL_VALUES // 2):
                    start = next(starts) % (POOL_VALUES // 2)  # another one for each part: experts must not be alike
                    torch.mul(pool[start : start + len(part)], inputs**-0.5, out=part)
        yield layer


class Adapted(torch.nn.Module):
    """A frozen projection with a trained adapter of low rank: y = W x + alpha / rank * B (A x).

    LoRA, Hu et al. 2021 (arXiv 2106.09685). A and B have the precision of W. B starts at small random values instead
    of zero: A would have no gradient.
    """

    def __init__(self, projection, rank):
        super().__init__()
        self.projection = projection
        outputs, inputs = projection.weight.shape
        self.lora_a = torch.nn.Parameter(torch.empty(rank, inputs))
        self.lora_b = torch.nn.Parameter(torch.empty(outputs, rank))

    def forward(self, x):
        adapter = functional.linear(functional.linear(x, self.lora_a), self.lora_b)
        return self.projection(x) + LORA_SCALE * adapter


class TorchDecoder(torch.nn.Module):
    """A decoder of the transformers library that returns only logits, without memory until fill()."""

    def __init__(self, workload):
        super().__init__()
        import transformers  # takes ten seconds, so only if needed
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        if TorchVersion(transformers.__version__) < "5.4":  # its cache has no tensor of its length
            raise SettingError(f"transformers {transformers.__version__} is too old: `pip install 'transformers>=5.4'`")
        sizes = workload.sizes
        rotary = {"rope_type": "default", "rope_theta": sizes.rope_theta} | sizes.rope_scaling()
        name = ("Qwen3" if sizes.is_qwen else "Llama") + ("Moe" if sizes.num_experts > 1 else "")
        attention = "sdpa"
        if workload.loss:
            # Without a cache, "sdpa" reads the positions back in each step to find packed sequences, which we have not.
            attention = "causal"  # without a mask, because none is registered under this name
            transformers.AttentionInterface.register(attention, sdpa_attention_forward)
        others = {"rope_parameters": rotary, "attn_implementation": attention}
        config = getattr(transformers, f"{name}Config")(**sizes.config(), **others)
        self.has_experts = sizes.num_experts > 1
        with torch.device("meta"):
            self.decoder = getattr(transformers, f"{name}ForCausalLM")(config).requires_grad_(not sizes.lora_rank)
            if sizes.lora_rank:
                for layer, name in itertools.product(self.decoder.model.layers, LORA_PROJECTIONS):
                    projection = getattr(layer.self_attn, name)
                    setattr(layer.self_attn, name, Adapted(projection, sizes.lora_rank))

    @torch.no_grad()
    def fill(self, device, dtype):
        """Allocate random weights, one layer at a time: twice the weights may not fit."""
        for layer in draw_layers(self, device, dtype):
            if layer is self.decoder.model.embed_tokens:
                self.decoder.tie_weights()
        self.to_empty(device=device, recurse=False)  # only the rotary frequencies

    def _apply(self, fn, recurse=True):
        """Move or convert the weights; the rotary frequencies are computed again, in float32 in every precision."""
        super()._apply(fn, recurse)
        with torch.device(next(self.parameters()).device):
            self.decoder.model.rotary_emb = type(self.decoder.model.rotary_emb)(config=self.decoder.config)
        return self

    def forward(self, ids, positions=None, cache=None, **options):
        # Without names, because transformers 5.24 calls the cache another one.
        return self.decoder(ids, None, positions, cache, use_cache=cache is not None, **options).logits


class TorchDenoiser(torch.nn.Module):
    """A denoiser of the diffusers library that takes and returns only tensors, without memory until fill()."""

    def __init__(self, workload):
        super().__init__()
        import diffusers  # takes ten seconds, so only if needed

        if TorchVersion(diffusers.__version__) < "0.37":  # older Flux has no guidance_embeds
            raise SettingError(f"diffusers {diffusers.__version__} is too old: `pip install 'diffusers>=0.37'`")
        sizes = workload.sizes
        with torch.device("meta"):
            self.model = getattr(diffusers, sizes.class_name)(**sizes.config)
        self.names = ["hidden_states" if sizes.takes_tokens else "sample", "timestep", *sizes.conditions]
        if sizes.takes_tokens:
            self.names += ["img_ids", "txt_ids"]

    def fill(self, device, dtype):
        """Allocate random weights."""
        for _ in draw_layers(self, device, dtype):
            pass

    def forward(self, *inputs):
        named = dict(zip(self.names, inputs, strict=True))
        if ADDED[0] in named:
            named["added_cond_kwargs"] = {name: named.pop(name) for name in ADDED}
        return self.model(**named, return_dict=False)[0]


class CachedModel(Model):
    """A decoder with its static cache. The contract is in base.py."""

    cache: Any  # a StaticCache

    def __init__(self, context, module, workload, is_trained=False):
        super().__init__(context, module, workload, is_trained)
        tables = module.decoder.lm_head.weight, module.decoder.model.embed_tokens.weight
        only_embeds = 0 if tables[0] is tables[1] else tables[1].nbytes
        sizes = {name: each.nbytes for name, each in module.named_parameters()}
        self.weight_bytes = workload.sizes.read_weights(sizes, workload.items_per_step) - only_embeds

    @torch.inference_mode()
    def open_cache(self, prompt, tokens):
        from transformers import StaticCache

        config = self.uncompiled.decoder.config
        self.cache = StaticCache(config=config, max_cache_len=tokens)
        shape = len(prompt), config.num_key_value_heads, config.head_dim
        self.cache.early_initialization(*shape, self.context.dtype, torch.device(self.context.device))
        self.length = 0  # tokens of each sequence in it
        if prompt.shape[1]:
            self._extend(self.uncompiled, prompt)

    @torch.inference_mode()
    def infer(self, place, tokens):
        if place != self.length:
            for layer in self.cache.layers:
                layer.cumulative_length.fill_(place)
            self.length = place
        return self._extend(self.module, tokens)

    def _extend(self, module, tokens):
        """Add tokens to the cache; return the logits of the last one (sequences, vocabulary)."""
        if self.uncompiled.has_experts and self.context.device != "cpu":  # as the library's generate() does
            kind = "batched_mm" if tokens.shape[1] == 1 else "grouped_mm"
            self.uncompiled.decoder.config._experts_implementation = kind
        self.length += tokens.shape[1]
        return module(tokens, cache=self.cache, logits_to_keep=1)[:, -1]

    @torch.inference_mode()
    def output(self, ids):
        with self.context.autocast():
            return self.context.to_numpy(self.uncompiled(ids, logits_to_keep=1)[:, -1])
