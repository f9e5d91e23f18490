"""Loops that a careful MLX user would write, for `make selfcheck FRAMEWORK=mlx`."""

import itertools
import os

import mlx.core as mx
from mlx import nn, optimizers
from mlx_lm.models import llama
from mlx_lm.models.cache import make_prompt_cache, trim_prompt_cache

from bench.frameworks.apple_mlx import on_mlx, on_mlx_networks
from bench.workloads.workload import RESNETS
from checks.selfcheck import block_of, check_loop

MODEL, SIDE = "resnet18", 32  # MLX's build for Linux CPUs would take minutes for larger images


def checks():
    on_mlx.choose_device(None)
    for phase in ("inference", "training"):
        yield check_loop(phase, MODEL, loop(phase), IMAGE_SIZE=str(SIDE))
    yield check_decode()


def loop(phase):
    """Return the block of steps as in MLX's documentation: value_and_grad, update, eval of both states."""
    batch_size = int(os.environ.get("BATCH_SIZE", 4))
    model = on_mlx_networks.ResNet(*RESNETS[MODEL], classes=1000)
    model.train(phase == "training")
    images, labels = mx.random.normal((batch_size, SIDE, SIDE, 3)), mx.random.randint(0, 1000, (batch_size,))
    optimizer = optimizers.SGD(0.01)
    differentiate = nn.value_and_grad(model, lambda x, y: nn.losses.cross_entropy(model(x), y, reduction="mean"))
    mx.eval(model.parameters(), images, labels)

    def infer():
        mx.async_eval(model(images))

    def train():
        loss, gradients = differentiate(images, labels)
        optimizer.update(model, gradients)
        mx.async_eval(loss, model.state, optimizer.state)

    return block_of(train if phase == "training" else infer, lambda _: mx.synchronize(), batch_size)


def check_decode(tokens=64):
    """Compare with SmolLM2 as mlx-lm's users run it: quantised, one token a step into its cache."""
    sizes = {"vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
    sizes |= {"num_attention_heads": 9, "num_key_value_heads": 3, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
    model = llama.Model(llama.ModelArgs(model_type="llama", **sizes))
    nn.quantize(model, group_size=64, bits=4)
    mx.eval(model.parameters())
    cache = make_prompt_cache(model)
    ids = itertools.cycle(mx.random.randint(1, 49_152, (tokens, 1, 1)))

    def decode():
        if cache[0].offset == tokens:
            trim_prompt_cache(cache, tokens)
        logits = model(next(ids), cache=cache)[:, -1]
        mx.async_eval(logits)

    block = block_of(decode, lambda _: mx.synchronize())
    environ = {"BATCH_SIZE": "1", "NEW_TOKENS": str(tokens), "PRECISION": "float32", "WEIGHT_BITS": "4"}
    return check_loop("decode", "smollm2-135m", block, workload="llm", **environ)
