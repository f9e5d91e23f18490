"""Measure denoising steps per second of a diffusion model, in inference or training.

    make diffusion
    MODEL=sd-1.5 IMAGE_SIZE=256 BATCH_SIZE=1,4 make diffusion
    MODEL=sdxl PHASE=training .venv/bin/python diffusion_benchmark.py

One step predicts the noise in a batch of latent images, for one point in time and one prompt of each; a batch of N
images counts as N steps. There is no text encoder, image decoder, scheduler or classifier-free guidance, which would
need two steps of the model for one of the image. The model is that of the diffusers library, with random weights
(bench/frameworks/on_torch_diffusion.py). `make settings` explains the settings.
"""

import functools
import json
import sys
from dataclasses import dataclass, replace

import numpy as np

from bench.launch import main
from bench.records import report
from bench.records.columns import format_number
from bench.settings import ROOT, SettingError
from bench.workloads.data import RESIDENT_BATCHES
from bench.workloads.workload import BYTES, Workload, flops_of_phase

CHECKED_SIDE = 128  # pixels of the images that are compared with the CPU, at most: larger ones would take minutes there


@dataclass(frozen=True)
class Denoiser:
    """A model of diffusers, as denoisers.json describes it; the counts of FLOPs are for images of image_size."""

    class_name: str
    config: dict  # arguments of that class
    image_size: int  # pixels a side
    pixels: int  # that a latent pixel, or a token of Flux, stands for on each side
    multiple: int  # of pixels that a side must be
    steps: int  # of an image, as the model's authors sample it
    conditions: dict  # {argument: shape for an image}: embeddings of the prompt, and of sizes
    parameters: int
    inference_flops: int
    training_flops: int

    @property
    def takes_tokens(self):
        """Whether the model takes a sequence of tokens with their places (Flux), not a latent image."""
        return self.class_name.startswith("Flux")


# Configurations on huggingface.co: google/ddpm-cifar10-32, stable-diffusion-v1-5/stable-diffusion-v1-5,
# stabilityai/stable-diffusion-xl-base-1.0, black-forest-labs/FLUX.2-klein-4B. Without what diffusers assumes anyway.
DENOISERS = {
    name: Denoiser(**about)
    for name, about in json.loads((ROOT / "bench/workloads/denoisers.json").read_text(encoding="utf-8")).items()
}


def diffusion_workload(settings):
    """Describe the work: a step takes one batch of latent images of IMAGE_SIZE."""
    if settings.model not in DENOISERS:
        raise SettingError(f"MODEL={settings.model!r} must be one of: {', '.join(DENOISERS)}")
    denoiser = DENOISERS[settings.model]
    side = settings.image_size or denoiser.image_size
    if side % denoiser.multiple:
        raise SettingError(f"IMAGE_SIZE='{side}' must be a multiple of {denoiser.multiple} for {settings.model}")
    forward, training = denoiser.inference_flops, denoiser.training_flops
    flops = flops_of_phase(settings.phase, forward, training - forward)
    # Of each weight; training adds its gradient, and Adam two numbers.
    numbers = 1 if settings.phase == "inference" else 2 if settings.optimizer == "sgd" else 4
    return Workload(
        name="diffusion",
        model=settings.model,
        unit="steps",
        items_per_step=settings.batch_size,
        make_batches=functools.partial(noise_batches, replace(denoiser, image_size=side)),
        make_checked=functools.partial(noise_batches, replace(denoiser, image_size=min(side, CHECKED_SIDE))),
        loss="mean_squared_error",
        sizes=denoiser,
        parameters=denoiser.parameters,
        flops_per_item=flops if side == denoiser.image_size else None,
        resident_bytes=numbers * denoiser.parameters * BYTES[settings.precision],
        columns={"image_size": side, "data": "synthetic"},
    )


def noise_batches(denoiser, batch_size, seed):
    """Make seeded batches of normal noise.

    Returns:
        A list of (noisy latents, times, *conditions, *places, noise). Latents and noise are float32 of shape
        (batch_size, channels, side, side), or for Flux (batch_size, side * side, channels) with the places of the
        latents and of the prompt's tokens, int64 of shape (batch_size, tokens, 4): time, row, column, number. Times
        are int64 below 1000. Flux's are float32, and powers of 2: 16 bits would change others.
    """
    random, side = np.random.default_rng(seed), denoiser.image_size // denoiser.pixels
    channels, conditions = denoiser.config["in_channels"], denoiser.conditions.values()
    shape, places = (channels, side, side), []
    if denoiser.takes_tokens:
        shape, (tokens, _) = (side * side, channels), *conditions
        places = [np.zeros((batch_size, count, 4), np.int64) for count in (side * side, tokens)]
        places[0][..., 1:3] = np.indices((side, side)).reshape(2, -1).T
        places[1][..., 3] = np.arange(tokens)

    def draw(shape):
        return random.standard_normal((batch_size, *shape), dtype=np.float32)

    def times():
        if denoiser.takes_tokens:
            return np.float32(0.5) ** random.integers(4, size=batch_size).astype(np.float32)
        return random.integers(1000, size=batch_size)

    return [(draw(shape), times(), *map(draw, conditions), *places, draw(shape)) for _ in range(RESIDENT_BATCHES)]


def describe(rows, stored):
    """Describe the rows as every benchmark does, and compute the time of a whole image."""
    text, (row, *_) = report.describe(rows, stored), rows
    if row["phase"] != "inference" or not row.get("throughput"):
        return text
    steps = DENOISERS[row["model"]].steps
    rate, seconds = format_number(row["throughput"] / steps), format_number(steps / row["throughput"])
    return f"{text}\n  computed, not measured: {steps} steps make {rate} images/s, or {seconds} s for an image"


if __name__ == "__main__":
    sys.exit(main("diffusion", diffusion_workload, describe=describe))
