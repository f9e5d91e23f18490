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


def loop(phase):
    """Return the block of ResNet-50 as a careful user would time it."""
    device, batch_size = on_torch.choose_device(None), int(os.environ.get("BATCH_SIZE", 4))
    model = torchvision.models.resnet50(weights=None).to(device).train(phase == "training")
    images = torch.randn(batch_size, 3, 224, 224, device=device)
    labels = torch.randint(1000, (batch_size,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)

    @torch.inference_mode()
    def infer():
        return model(images)

    def train():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return block_of(train if phase == "training" else infer, wait, batch_size)


def check_language_model(phase, tokens=64):
    """Compare with SmolLM2 as transformers' users run it: a prompt into an empty static cache, or one token a step."""
    device = on_torch.choose_device(None)
    sizes = {"vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
    sizes |= {"num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192}
    config = transformers.LlamaConfig(**sizes, tie_word_embeddings=True, attn_implementation="sdpa")
    model = transformers.LlamaForCausalLM(config).to(device).eval()
    ids = torch.randint(49_152, (1, tokens), device=device)
    cache = transformers.StaticCache(config=config, max_cache_len=tokens)
    cache.early_initialization(1, 3, 576 // 9, model.dtype, torch.device(device))

    def steps_of_one_cache():
        cache.reset()
        for part in [ids] if phase == "prefill" else ids.split(1, dim=1):
            yield model(part, None, None, cache, logits_to_keep=1).logits

    done = itertools.chain.from_iterable(steps_of_one_cache() for _ in itertools.count())
    step = torch.inference_mode()(lambda: next(done))
    block = block_of(step, wait, tokens if phase == "prefill" else 1)
    environ = {"BATCH_SIZE": "1", "PROMPT_TOKENS": str(tokens), "NEW_TOKENS": str(tokens), "PRECISION": "float32"}
    return check_loop(phase, "smollm2-135m", block, workload="llm", **environ)


def matmul(side):
    device = on_torch.choose_device(None)
    sets = itertools.cycle([[torch.randn(side, side, device=device) for _ in range(2)] for _ in range(MAX_SETS)])
    return block_of(lambda: torch.mm(*next(sets)), wait)
