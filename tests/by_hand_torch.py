"""Loops that a careful PyTorch user would write, for `make selfcheck`."""

import itertools
import os

import torch
import torchvision
import transformers

from bench.frameworks import on_torch
from bench.workloads.operators import MAX_SETS
from tests.selfcheck import block_of, check_loops, check_matmul, is_one


def checks():
    yield check_matmul(matmul)
    for phase in ("inference", "training"):
        yield check_loops(phase, "resnet50", {"a hand-written loop": (loop(phase), is_one)})
    for phase in ("prefill", "decode"):
        yield check_language_model(phase)


def wait(_):
    if on_torch.choose_device(None) != "cpu":
        torch.accelerator.synchronize()


def loop(phase):
    """Return the block of ResNet-50 as a careful user would time it."""
    device, batch_size = on_torch.choose_device(None), int(os.environ.get("BATCH_SIZE", 4))
    model = torchvision.models.resnet50(weights=None).to(device)
    images = torch.randn(batch_size, 3, 224, 224, device=device)
    labels = torch.randint(1000, (batch_size,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)

    def infer():
        with torch.inference_mode():
            model(images)

    def train():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    model.train(phase == "training")
    return block_of(train if phase == "training" else infer, wait, batch_size)


def check_language_model(phase, tokens=64):
    """Compare with SmolLM2 as transformers' users run it: a prompt into an empty static cache, or one token a step."""
    device, batch_size = on_torch.choose_device(None), 1
    sizes = {"vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
    sizes |= {"num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192}
    config = transformers.LlamaConfig(**sizes, tie_word_embeddings=True, attn_implementation="sdpa")
    model = transformers.LlamaForCausalLM(config).to(device).eval()
    ids = torch.randint(49_152, (batch_size, tokens), device=device)
    cache = transformers.StaticCache(config=config, max_cache_len=tokens)

    def steps_of_one_cache():
        cache.reset()
        for part in [ids] if phase == "prefill" else ids.split(1, dim=1):
            yield model(input_ids=part, past_key_values=cache, logits_to_keep=1).logits

    done = itertools.chain.from_iterable(steps_of_one_cache() for _ in itertools.count())
    step = torch.inference_mode()(lambda: next(done))
    block = block_of(step, wait, (tokens if phase == "prefill" else 1) * batch_size)
    environ = {"BATCH_SIZE": "1", "PROMPT_TOKENS": str(tokens), "NEW_TOKENS": str(tokens), "PRECISION": "float32"}
    return check_loops(phase, "smollm2-135m", {"a hand-written loop": (block, is_one)}, script="llm", **environ)


def matmul(side):
    device = on_torch.choose_device(None)
    sets = itertools.cycle([[torch.randn(side, side, device=device) for _ in range(2)] for _ in range(MAX_SETS)])
    return block_of(lambda: torch.mm(*next(sets)), wait)
