"""Loops that a careful PyTorch user would write, for `make selfcheck`."""

import itertools
import os
import subprocess
import sys

import diffusers
import torch
import torchvision
import transformers

from bench.frameworks.pytorch import on_torch
from bench.workloads.operators import MAX_SETS
from checks.selfcheck import block_of, check_loop, check_matmul
from tests.frameworks import known_device


def checks():
    if known_device.IS_AVAILABLE:
        yield subprocess.run([sys.executable, "-m", "tests.frameworks.known_device"]).returncode == 0
    yield check_matmul(matmul)
    for phase in ("inference", "training"):
        yield check_loop(phase, "resnet50", loop(phase))
    for phase in ("prefill", "decode"):
        yield check_language_model(phase)
    for rank in (0, 8):
        yield check_training(rank)
    for phase in ("inference", "training"):
        yield check_denoiser(phase)


def wait(_):
    if on_torch.choose_device(None) != "cpu":
        torch.accelerator.synchronize()


def step_of(phase, infer, loss, optimizer):
    """Return a step as a careful user would write it; infer: () -> output, loss: () -> mean loss of the batch."""

    def train():
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return train if phase == "training" else torch.inference_mode()(infer)


def loop(phase):
    """Return the block of ResNet-50 as a careful user would time it."""
    device, batch_size = on_torch.choose_device(None), int(os.environ.get("BATCH_SIZE", 4))
    model = torchvision.models.resnet50(weights=None).to(device)
    images = torch.randn(batch_size, 3, 224, 224, device=device)
    labels = torch.randint(1000, (batch_size,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)

    def infer():
        return model(images)

    def loss():
        return torch.nn.functional.cross_entropy(infer(), labels)

    model.train(phase == "training")
    return block_of(step_of(phase, infer, loss, optimizer), wait, batch_size)


def build_smollm2(device):
    """Return (config, model) of SmolLM2-135M."""
    sizes = {"vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
    sizes |= {"num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192}
    config = transformers.LlamaConfig(**sizes, tie_word_embeddings=True, attn_implementation="sdpa")
    return config, transformers.LlamaForCausalLM(config).to(device)


def check_training(rank, tokens=64):
    """Compare with SmolLM2 as a careful user would train it: all weights, or LoRA as hooks of projections."""
    device, batch_size, adapters = on_torch.choose_device(None), 1, []
    model = build_smollm2(device)[1].train().requires_grad_(rank == 0)
    ids = torch.randint(49_152, (batch_size, tokens + 1), device=device)

    def adapt(projection):
        a = torch.nn.Parameter(torch.randn(rank, projection.in_features, device=device) / 24)
        b = torch.nn.Parameter(torch.randn(projection.out_features, rank, device=device) / 24)
        projection.register_forward_hook(lambda _, inputs, output: output + 2 * ((inputs[0] @ a.T) @ b.T))
        adapters.extend((a, b))

    for layer in model.model.layers if rank else ():
        for name in "qkvo":
            adapt(getattr(layer.self_attn, f"{name}_proj"))
    optimizer = torch.optim.AdamW(adapters or model.parameters(), lr=3e-4, fused=True)

    def loss():
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    block = block_of(step_of("training", None, loss, optimizer), wait, tokens * batch_size)
    environ = {"BATCH_SIZE": "1", "PROMPT_TOKENS": str(tokens), "PRECISION": "float32", "LORA_RANK": str(rank)}
    what = f"a hand-written loop, LoRA of rank {rank}"
    return check_loop("training", "smollm2-135m", block, workload="llm", what=what, **environ)


def check_language_model(phase, tokens=64):
    """Compare with SmolLM2 as transformers' users run it: a prompt into an empty static cache, or one token a step."""
    device, batch_size = on_torch.choose_device(None), 1
    config, model = build_smollm2(device)
    model.eval()
    ids = torch.randint(49_152, (batch_size, tokens), device=device)
    cache = transformers.StaticCache(config=config, max_cache_len=tokens)
    heads = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
    cache.early_initialization(batch_size, *heads, model.dtype, torch.device(device))

    def steps_of_one_cache():
        cache.reset()
        for part in [ids] if phase == "prefill" else ids.split(1, dim=1):
            yield model(part, None, None, cache, logits_to_keep=1).logits

    done = itertools.chain.from_iterable(steps_of_one_cache() for _ in itertools.count())
    step = torch.inference_mode()(lambda: next(done))
    block = block_of(step, wait, (tokens if phase == "prefill" else 1) * batch_size)
    environ = {"BATCH_SIZE": "1", "PROMPT_TOKENS": str(tokens), "NEW_TOKENS": str(tokens), "PRECISION": "float32"}
    return check_loop(phase, "smollm2-135m", block, workload="llm", **environ)


def check_denoiser(phase, batch_size=1):
    """Compare with the UNet of DDPM for CIFAR-10 as diffusers' users run and train it."""
    device = on_torch.choose_device(None)
    blocks = {"down_block_types": ["DownBlock2D", "AttnDownBlock2D", "DownBlock2D", "DownBlock2D"]}
    blocks |= {"up_block_types": ["UpBlock2D", "UpBlock2D", "AttnUpBlock2D", "UpBlock2D"]}
    sizes = {"sample_size": 32, "block_out_channels": (128, 256, 256, 256), "attention_head_dim": None}
    model = diffusers.UNet2DModel(**blocks, **sizes, downsample_padding=0).to(device).train(phase == "training")
    latents, noise = torch.randn(2, batch_size, 3, 32, 32, device=device)
    times = torch.randint(1000, (batch_size,), device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

    def infer():
        return model(latents, times).sample

    def loss():
        return torch.nn.functional.mse_loss(infer(), noise)

    block = block_of(step_of(phase, infer, loss, optimizer), wait, batch_size)
    environ = {"BATCH_SIZE": str(batch_size), "PRECISION": "float32"}
    return check_loop(phase, "ddpm-cifar10", block, workload="diffusion", **environ)


def matmul(side):
    device = on_torch.choose_device(None)
    sets = itertools.cycle([[torch.randn(side, side, device=device) for _ in range(2)] for _ in range(MAX_SETS)])
    return block_of(lambda: torch.mm(*next(sets)), wait)
