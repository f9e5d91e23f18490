"""Loops that a careful PyTorch user would write, for `make selfcheck`."""

import itertools
import os
import subprocess
import sys

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


def matmul(side):
    device = on_torch.choose_device(None)
    sets = itertools.cycle([[torch.randn(side, side, device=device) for _ in range(2)] for _ in range(MAX_SETS)])
    return block_of(lambda: torch.mm(*next(sets)), wait)
