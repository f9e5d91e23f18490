"""The idea of this program in one file: build a model, warm up, time windows of steps, take their median.

    .venv/bin/python checks/by_hand_torch.py     images/s of ResNet-50

Start reading here. It imports nothing of ours: these are the loops that a careful user of PyTorch would write, and
`make selfcheck` compares our figures with theirs.
"""

import os
import statistics
import time

import torch
import torchvision
import transformers

BATCH_SIZE = int(os.environ.get("BATCH_SIZE", 4))
DEVICE = "cpu" if os.environ.get("USE_GPU") == "0" else torch.accelerator.current_accelerator(True) or "cpu"


def image_step(phase):
    """Return a step of ResNet-50: it submits work, and returns a tensor that depends on all of it."""
    model = torchvision.models.resnet50(weights=None).to(DEVICE).train(phase == "training")
    images = torch.randn(BATCH_SIZE, 3, 224, 224, device=DEVICE)
    labels = torch.randint(1000, (BATCH_SIZE,), device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)

    def train():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        return model.fc.bias.detach()

    return train if phase == "training" else torch.inference_mode()(lambda: model(images))


def decode_step(tokens):
    """Return a step of SmolLM2: one token into a static cache, which is emptied when it has so many."""
    sizes = {"vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
    sizes |= {"num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True}
    config = transformers.LlamaConfig(**sizes)
    model = transformers.LlamaForCausalLM(config).to(DEVICE).eval()
    cache = transformers.StaticCache(config=config, max_cache_len=tokens)

    def steps():
        while True:
            for token in torch.randint(49_152, (tokens, 1, 1), device=DEVICE):
                yield model(token, None, None, cache, logits_to_keep=1).logits
            cache.reset()

    return torch.inference_mode()(steps().__next__)


def time_window(step, steps):
    """Return the seconds of a window: `steps` steps and one read, because a GPU works behind the host's back."""
    start = time.perf_counter()
    for _ in range(steps):
        result = None  # the next output may take its memory
        result = step()
    result.flatten()[-1].item()  # waits until the device has computed all
    return time.perf_counter() - start


def measure(step, windows=15, steps=None):
    """Return the median of the seconds of a step in each window; without `steps`, a window takes about 0.2 seconds."""
    time_window(step, 3)  # warm-up: libraries choose kernels, memory is allocated
    steps = steps or max(1, round(0.2 / time_window(step, 1)))
    return statistics.median(time_window(step, steps) for _ in range(windows)) / steps


if __name__ == "__main__":
    for phase in ("inference", "training"):
        print(f"ResNet-50 {phase}, batch {BATCH_SIZE}: {BATCH_SIZE / measure(image_step(phase)):.4g} images/s")
