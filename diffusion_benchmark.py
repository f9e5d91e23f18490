"""Measure denoising steps per second of a diffusion model, in inference or training.

    make diffusion
    MODEL=sd-1.5 IMAGE_SIZE=256 BATCH_SIZE=1,4 make diffusion

A step predicts the noise in a batch of latent images; a batch of N images counts as N steps. It has no text encoder,
image decoder, scheduler or classifier-free guidance, which would need two steps of the model for one of the image. The
models are those of the diffusers library, with random weights. `make settings` explains the settings.
"""

import functools
import json
import sys
from dataclasses import dataclass, replace

from bench.run import main
from bench.settings import ROOT, SettingError
from bench.workloads.data import RESIDENT_BATCHES
from bench.workloads.workload import BYTES, Workload, find_model, flops_of_phase

COMPARED_SIDE, COMPARED_TOKENS = 128, 64  # pixels, and Flux's, that are compared with the CPU: more take minutes


@dataclass(frozen=True)
class Denoiser:
    """A model of diffusers, as denoisers.json describes it; the counts of FLOPs are for images of image_size."""

    class_name: str
    config: dict  # arguments of that class
    image_size: int  # pixels a side
    pixels: int  # on each side, for one latent pixel or one token of Flux
    conditions: dict  # {argument: shape for an image}: embeddings of the prompt, and of sizes
    parameters: int
    inference_flops: int
    training_flops: int
    takes_tokens: bool = False  # with their places (Flux), not a latent image


# Configurations on huggingface.co: google/ddpm-cifar10-32, stable-diffusion-v1-5/stable-diffusion-v1-5,
# stabilityai/stable-diffusion-xl-base-1.0, black-forest-labs/FLUX.2-klein-4B. Without what diffusers assumes anyway.
DENOISERS = {
    name: Denoiser(**fields)
    for name, fields in json.loads((ROOT / "bench/workloads/denoisers.json").read_text(encoding="utf-8")).items()
}


def diffusion_workload(settings):
    """Describe the work: a step takes one batch of latent images of IMAGE_SIZE."""
    model = find_model(settings.model, DENOISERS)
    denoiser = DENOISERS[model]
    side = settings.image_size or denoiser.image_size
    if side % denoiser.pixels:
        raise SettingError(f"IMAGE_SIZE='{side}' must be a multiple of {denoiser.pixels} for {model}")
    forward = denoiser.inference_flops
    flops = flops_of_phase(settings.phase, forward, denoiser.training_flops - forward)
    small = replace(denoiser, image_size=min(side, COMPARED_SIDE))
    if denoiser.takes_tokens:
        small = replace(small, conditions={name: [COMPARED_TOKENS, n] for name, (_, n) in small.conditions.items()})
    # Tensors for each weight: training adds its gradient, and Adam two more.
    tensors = 1 if settings.phase == "inference" else 2 if settings.optimizer == "sgd" else 4
    return Workload(
        name="diffusion",
        model=model,
        unit="steps",
        items_per_step=settings.batch_size,
        make_batches=functools.partial(noise_batches, replace(denoiser, image_size=side)),
        make_checked=functools.partial(noise_batches, small),
        loss="mean_squared_error",
        sizes=denoiser,
        parameters=denoiser.parameters,
        flops_per_item=flops if side == denoiser.image_size else None,
        has_convolutions=not denoiser.takes_tokens,
        resident_bytes=tensors * denoiser.parameters * BYTES[settings.precision],
        columns={"image_size": side, "data": "synthetic"},
    )


def noise_batches(denoiser, batch_size, seed):
    """Make seeded batches of normal noise: a list of (noisy latents, times, *conditions, *places, noise).

    Latents and noise are float32 of shape (batch_size, channels, side, side), or for Flux (batch_size, side * side,
    channels) with the places of the latents and of the prompt's tokens, int64 of shape (batch_size, tokens, 4): time,
    row, column, number. Times are powers of 2, which 16 bits do not change; a step takes as long at any time.
    """
    import numpy as np  # here, so that a Python without it prints one line

    random = np.random.default_rng(seed)
    side = denoiser.image_size // denoiser.pixels
    shape = (denoiser.config["in_channels"], side, side)
    conditions = denoiser.conditions.values()
    places = []
    if denoiser.takes_tokens:
        shape = (side * side, shape[0])
        ((tokens, _),) = conditions
        places = [np.zeros((batch_size, count, 4), np.int64) for count in (side * side, tokens)]
        places[0][..., 1:3] = np.indices((side, side)).reshape(2, -1).T
        places[1][..., 3] = np.arange(tokens)

    def draw(shape):
        return random.standard_normal((batch_size, *shape), dtype=np.float32)

    times = [np.float32(0.5) ** random.integers(4, size=batch_size).astype(np.float32) for _ in range(RESIDENT_BATCHES)]
    return [(draw(shape), time, *map(draw, conditions), *places, draw(shape)) for time in times]


if __name__ == "__main__":
    sys.exit(main("diffusion", diffusion_workload))
