"""Models of on_torch.py with their weights, inputs and outputs: other frameworks compare theirs.

    python -m tests.frameworks.torch_reference FOLDER MODEL ...     writes FOLDER/<model>.npz

A program of its own, because on Linux no environment holds two frameworks.
"""

import sys
from pathlib import Path

import numpy as np

import llm_benchmark
from bench.settings import read_settings
from tests.fakes import workload_of_command
from transformer_benchmark import ENCODERS, Encoder

# As deep and wide as it takes to see a difference; the published sizes would take gigabytes to hand over.
TINY = {
    name: Encoder(num_layers=2, hidden_size=64, num_heads=4, intermediate_size=128, token_types=types, vocab_size=500)
    for name, types in (("tiny-distilbert", 0), ("tiny-bert", 2))
}
TINY_DECODERS = {
    "tiny-llama": llm_benchmark.Decoder(2, 64, 4, 2, 16, 128, 512, 64, 1e4, rope_factor=8, tie_word_embeddings=False),
    "tiny-qwen": llm_benchmark.Decoder(2, 64, 4, 2, 32, 128, 512, 64, 1e4, is_qwen=True, rms_norm_eps=1e-6),
    "tiny-moe": llm_benchmark.Decoder(
        *(2, 64, 4, 2, 32, 64, 512, 64, 1e4), **llm_benchmark.EXPERTS | {"num_experts": 8, "num_experts_per_tok": 2}
    ),
}
# SGD: Adam's first step is the sign of the gradient, which is noise where the gradient is zero.
CASES = {
    "resnet18": ("image", {"IMAGE_SIZE": "64"}),
    "resnet50": ("image", {"IMAGE_SIZE": "96"}),
    "mlp-64-32": ("mlp", {"DATA": "synthetic"}),
    **dict.fromkeys(TINY, ("transformer", {"SEQUENCE_LENGTH": "16", "OPTIMIZER": "sgd"})),
}
TRAINED_DECODERS = {
    "tiny-llama": ("llm", {"PROMPT_TOKENS": "8", "OPTIMIZER": "sgd"}),
    "tiny-qwen": ("llm", {"PROMPT_TOKENS": "8", "OPTIMIZER": "sgd", "LORA_RANK": "4"}),
}


def describe(model, **environ):
    """(workload, settings) of a case."""
    ENCODERS.update(TINY)
    llm_benchmark.DECODERS.update(TINY_DECODERS)
    script, extra = (CASES | TRAINED_DECODERS)[model]
    asked = {"MODEL": model, "BATCH_SIZE": "2", "PHASE": "training"} | extra | environ
    settings = read_settings(script, asked, "cpu")
    return workload_of_command(script, settings), settings


def write(model, folder):
    from bench.frameworks.pytorch import on_torch

    session = on_torch.open_session(*describe(model, USE_GPU="0"), "device")
    ours, (inputs, labels) = session.model, next(session.batches)[0]
    kept = {name: value.numpy().copy() for name, value in ours.module.state_dict().items()}
    logits, losses, gradients = ours.output(inputs), [], {}
    ours.module.train(model not in TINY)  # dropout draws other numbers in other frameworks
    for _ in range(3):
        ours.train(inputs, labels)
        losses.append(ours.loss.item())
        trained = ours.trained_weights().items()
        gradients = gradients or {f"_gradient.{name}": weight.grad.numpy().copy() for name, weight in trained}
    facts = {"_inputs": inputs.numpy(), "_labels": labels.numpy(), "_logits": logits, "_losses": losses}
    np.savez(Path(folder) / f"{model}.npz", **facts, **gradients, **kept)


if __name__ == "__main__":
    for case in sys.argv[2:]:
        write(case, sys.argv[1])
