"""Language models in PyTorch: the transformers library's own classes, its static cache, random weights, LoRA."""

import itertools
import logging
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

from bench.frameworks import base, refuse_old
from bench.timing import MeasurementError, proof
from bench.workloads.data import POOL_NUMBERS, POOL_STRIDE
from bench.workloads.workload import LORA_PROJECTIONS, LORA_SCALE

GROUP_SIZE = 64  # weights that share a scale and a zero point in 4 bits
DEVICES = {8: ("cpu", "cuda"), 4: ("cuda",)}  # those with fast kernels, by the bits of a weight
ROWS = 2048  # quantised at once: torchao needs 16 bytes more for each weight


@torch.no_grad()
def draw_layers(module, device, dtype):
    """Allocate random weights, once and in their type, one layer at a time: yield each layer.

    They keep the variance of what passes them, and adapters change little; norms are ones, biases zeros. All are cut
    from one pool of numbers, because drawing eight billion takes a CPU a minute.
    """
    pool = torch.randn(POOL_NUMBERS, device=device, dtype=dtype)
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
                    inputs = layer.a.shape[1]  # of B too: a B A x as large as W x would magnify rounding without limit
                for part in weights.view(-1).split(POOL_NUMBERS // 2):
                    start = next(starts) % (POOL_NUMBERS // 2)  # another one for each part: experts must not be alike
                    torch.mul(pool[start : start + len(part)], inputs**-0.5, out=part)
        yield layer


def quantise(layer, bits):
    """Quantise a projection by torchao.

    Raises:
        MeasurementError: `unsupported`, or `wrong_output`: those weights are not the original ones up to rounding.
    """
    refuse_old("torchao", "0.18")
    from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

    original = layer.weight.detach()
    device = original.device.type
    if device not in DEVICES[bits]:
        reason = f"WEIGHT_BITS='{bits}' has no fast kernels in PyTorch on {device}: set FRAMEWORK=mlx"
        raise MeasurementError("unsupported", reason)
    if bits == 4 and original.dtype != torch.bfloat16:
        raise MeasurementError("unsupported", "WEIGHT_BITS='4' in PyTorch needs PRECISION=bfloat16: set it")
    how: dict[str, Any] = {"set_inductor_config": False}  # it would change the settings of the process
    if bits == 8:
        config = Int8WeightOnlyConfig(**how)
    else:
        config = Int4WeightOnlyConfig(GROUP_SIZE, int4_packing_format="tile_packed_to_4d", **how)
    tensors: dict[str, Any] = {}  # those of the whole matrix: blocks that are kept would fragment the memory
    for number, part in enumerate(original.split(ROWS)):
        layer.weight = torch.nn.Parameter(part, requires_grad=False)
        quantize_(layer, config)
        block: Any = layer.weight
        proof.require(type(block) is not torch.nn.Parameter, f"torchao skips a matrix of {tuple(original.shape)}")
        names, attributes = block.__tensor_flatten__()
        for name in names:
            inner = getattr(block, name)
            axis = int(name == "scale_and_zero")  # of the rows
            sizes = list(inner.shape)
            sizes[axis] = sizes[axis] * len(original) // len(part)
            if name not in tensors:
                tensors[name] = inner.new_empty(sizes)
            tensors[name].narrow(axis, number * ROWS * sizes[axis] // len(original), inner.shape[axis]).copy_(inner)
    attributes |= {"shape": original.shape} if "shape" in attributes else {}
    quantised = type(block).__tensor_unflatten__(tensors, attributes, original.shape, None)
    # The last rows and scales of 4 bits are padding.
    places = slice(original.shape[1] // GROUP_SIZE), slice(len(original)), 0
    scale = quantised.scale if bits == 8 else quantised.scale_and_zero[places].T
    steps = (restore(quantised, original.dtype) - original).reshape(scale.numel(), -1) / scale.reshape(-1, 1)
    proof.refuse_wrong_weights(steps.abs().max().item(), f"a matrix of {tuple(original.shape)}")
    layer.weight = torch.nn.Parameter(quantised, requires_grad=False)
    layer.__class__ = Quantised


def restore(weight, dtype):
    """Return the matrix that quantised weights stand for; others as they are."""
    if not hasattr(weight, "__tensor_flatten__"):
        return weight
    if not hasattr(weight, "scale_and_zero"):
        return weight.dequantize(dtype)
    # A tile of 8 rows and 128 inputs has 32 lanes, 4 for a row, and a lane 4 words of 32 inputs: aten's int4mm.cu. The
    # bytes of a word, two for even and two for odd inputs, have numbers of inputs that are 8 apart.
    packed = weight.qdata.view(torch.uint8).unflatten(3, (4, 2, 2)).unflatten(2, (8, 4))
    numbers = torch.stack([packed & 15, packed >> 4], -1).permute(0, 2, 1, 4, 6, 7, 3, 5)
    scale, zero = weight.scale_and_zero.transpose(0, 1)[:, :, None].unbind(-1)
    numbers = numbers.reshape(*scale.shape[:2], GROUP_SIZE).to(scale.dtype) - 8
    return torch.addcmul(zero, numbers, scale).flatten(1)[: weight.shape[0], : weight.shape[1]].to(dtype)


class Restored(torch.autograd.Function):
    """The product with frozen quantised weights, which have no gradient, but their input has one.

    Both passes restore the weights: what is kept for the backward pass would take the memory that quantising saves.
    """

    @staticmethod
    def forward(context, x, weight):  # pyright: ignore[reportIncompatibleMethodOverride]
        context.save_for_backward(weight)
        return functional.linear(x, restore(weight, x.dtype))

    @staticmethod
    def backward(context, gradient):  # pyright: ignore[reportIncompatibleMethodOverride]
        (weight,) = context.saved_tensors
        return gradient @ restore(weight, gradient.dtype), None


class Quantised(torch.nn.Linear):
    """A projection with quantised weights: torchao's kernel, or in training, which that cannot do, Restored."""

    def forward(self, x):
        return Restored.apply(x, self.weight) if torch.is_grad_enabled() else super().forward(x)


def stored_bytes(weights):
    """Return the bytes of weights in memory; quantised ones are several tensors: numbers, scales ..."""
    names = weights.__tensor_flatten__()[0] if hasattr(weights, "__tensor_flatten__") else []
    return sum(getattr(weights, name).nbytes for name in names) or weights.nbytes


class Adapted(torch.nn.Module):
    """A frozen projection with a trained adapter of low rank: y = W x + alpha / rank * B (A x).

    LoRA, Hu et al. 2021 (arXiv 2106.09685). A and B have the precision of W. B starts at small random numbers instead
    of zero: A would have no gradient.
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


@contextmanager
def routed(module, chosen=()):
    """Yield a list of (probabilities, chosen experts) of each router of transformers that is called inside.

    Args:
        chosen: what they choose instead, call by call: NumPy arrays (..., k).
    """
    calls = []
    given = iter(chosen)

    def note(router, arguments, outputs):
        logits, scores, indices = outputs
        probabilities = torch.softmax(logits.double() if logits.dtype == torch.float64 else logits.float(), -1)
        if chosen:
            indices = torch.as_tensor(next(given)).reshape(indices.shape)
            scores = probabilities.gather(-1, indices)
            scores = (scores / scores.sum(-1, keepdim=True)).to(logits.dtype)
        calls.append((probabilities, indices))
        return logits, scores, indices

    routers = [each for each in module.modules() if type(each).__name__.endswith("TopKRouter")]
    hooks = [router.register_forward_hook(note) for router in routers]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def copy_to_cpu(module, copied, dtype):
    """Return `copied`, a new module, with the weights of a module on the CPU; of quantised ones those they stand for.

    Raises:
        MeasurementError: the module has lost layers since it was built, or has got others.
    """
    if any(weight.is_meta for weight in copied.parameters()):
        copied.to_empty(device="cpu")
        if isinstance(copied, Decoder) and module.decoder.lm_head.weight is module.decoder.model.embed_tokens.weight:
            copied.decoder.tie_weights()
    theirs, ours = (
        dict([*each.named_parameters(remove_duplicate=False), *each.named_buffers()]) for each in (module, copied)
    )
    proof.require(theirs.keys() == ours.keys(), "the model has other layers than when it was built")
    for name, tensor in theirs.items():
        ours[name].copy_(restore(tensor.detach(), torch.float32).cpu())  # in its own precision, which is faster
    return copied.to(dtype)


class Decoder(torch.nn.Module):
    """A decoder of the transformers library that returns only logits, without memory until fill()."""

    def __init__(self, workload):
        super().__init__()
        refuse_old("transformers", "5.4")  # an older StaticCache has no cumulative_length
        logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # transformers imports torchao, which warns
        import transformers  # takes ten seconds, so only if needed
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        sizes = workload.sizes
        rotary = {"rope_type": "default", "rope_theta": sizes.rope_theta} | sizes.rope_scaling()
        name = "Qwen3" if sizes.is_qwen else "Llama"
        name += "Moe" if sizes.num_experts > 1 else ""
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

    @property
    def checked_weight(self):
        """Return a matrix whose gradient is compared, and which 16 bits let move."""
        return [each for name, each in self.named_parameters() if each.requires_grad and "o_proj" in name][-1]

    @torch.no_grad()
    def fill(self, device, dtype, bits=None):
        """Allocate random weights, one layer at a time: twice the weights may not fit.

        Args:
            bits: of each weight of the projections and the output; None: those of `dtype`.
        """
        if bits and self.has_experts:
            reason = f"WEIGHT_BITS='{bits}' has no kernels for experts in PyTorch: set FRAMEWORK=mlx"
            raise MeasurementError("unsupported", reason)
        for layer in draw_layers(self, device, dtype):
            if layer is self.decoder.model.embed_tokens:
                self.decoder.tie_weights()
            if bits and isinstance(layer, torch.nn.Linear):
                quantise(layer, bits)
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


class CachedModel(base.CachedModel):
    """A decoder with its static cache. The contract is in base.py."""

    cache: Any  # a StaticCache

    def __init__(self, context, decoder, parameters, workload):
        self.context = context
        self.workload = workload
        self.uncompiled = decoder.eval()
        self.parameters = parameters
        tables = decoder.decoder.lm_head.weight, decoder.decoder.model.embed_tokens.weight
        only_embeds = 0 if tables[0] is tables[1] else tables[1].nbytes
        sizes = {name: stored_bytes(each) for name, each in decoder.named_parameters()}
        self.weight_bytes = workload.sizes.read_weights(sizes, workload.items_per_step) - only_embeds
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

    def extend_uncompiled(self, tokens, returns_all=False):
        return self._run(self.uncompiled, tokens, returns_all)

    def trained_weights(self):
        return [weight for weight in self.uncompiled.parameters() if type(weight) is torch.nn.Parameter]

    def routed(self):
        return routed(self.uncompiled)

    def build_reference(self, ids, places, chosen, precision):
        module = copy_to_cpu(self.uncompiled, Decoder(self.workload), getattr(torch, precision)).eval()
        module.decoder.config._experts_implementation = "eager"  # other kernels, which have float64
        ids, places = torch.from_numpy(ids), torch.tensor(places)

        @torch.inference_mode()
        def evaluate(_):
            with routed(module, chosen):
                return {proof.OUTPUT: module(ids, logits_to_keep=places).float().numpy()}

        return evaluate, [each.detach().numpy() for each in module.parameters()]

    @torch.inference_mode()
    def _run(self, module, tokens, returns_all=False):
        if self.uncompiled.has_experts and self.context.device != "cpu":  # as the library's generate() does
            kind = "batched_mm" if tokens.shape[1] == 1 else "grouped_mm"
            self.uncompiled.decoder.config._experts_implementation = kind
        logits = module(tokens, cache=self.cache, logits_to_keep=0 if returns_all else 1)
        return logits if returns_all else logits[:, -1]
