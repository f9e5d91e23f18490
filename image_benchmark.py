"""Measure images per second of an image classification model, in inference or training.

    make image
    USE_GPU=1 BATCH_SIZE=64 make image
    MODEL=mobilenet_v2 PHASE=training .venv/bin/python image_benchmark.py

One step is one batch of colour images, sorted into ImageNet's 1,000 classes. The model is torchvision's, with random
weights; other frameworks build the same layers (build_image() in bench/frameworks/). See `make settings`.
"""

import csv
import difflib
import functools
import math
import sys
from dataclasses import dataclass

from bench.run import benchmark  # isort: skip  # first, because it tells of a missing package

import numpy as np

from bench.settings import ROOT, SettingError
from bench.workloads.data import RESIDENT_BATCHES
from bench.workloads.workload import Workload, flops_of_phase, resolve_model

COUNTS = ROOT / "bench/workloads/flops.csv"  # written by checks/count_flops.py
MOST_NUMBERS = 2**24 - 3  # that are drawn for a batch: a prime, so that no two images of a batch are equal
SHARE = np.float32(0.5**0.5)  # of the noise, and of the colour: each has half of the variance
IMAGE_SIZE = {"inception_v3": 299}  # pixels a side; 224 for all other models


@dataclass(frozen=True)
class ImageSizes:
    """What an image model reads and returns: square colour images, and a logit for each class."""

    side: int  # pixels
    classes: int = 1000


def image_workload(settings):
    """Describe the work: a step takes one batch of images, which are on the device or come from JPEG files."""
    with COUNTS.open(newline="") as lines:
        models = {row["model"]: row for row in csv.DictReader(lines)}
    model = resolve_model(settings, models, needs_known=False).model
    side = settings.image_size or IMAGE_SIZE.get(model, 224)
    sizes = ImageSizes(side)
    parameters = flops = None  # unknown if flops.csv lacks the model
    counts = models.get(model)
    # A framework may have models that flops.csv lacks, but hardly one whose name is nearly the same.
    if not counts and (near := difflib.get_close_matches(model.lower(), models, n=3, cutoff=0.8)):
        raise SettingError(f"MODEL={model!r} is not a classification model: did you mean {', '.join(near)}?")
    if counts:
        is_counted = int(counts["image_size"]) == side
        if is_counted or not model.startswith("vit"):  # a ViT trains a vector for each patch
            parameters = int(counts["parameters"])
        if is_counted:  # convolutions and matmuls
            forward = int(counts["inference_flops"])
            training = int(counts["training_flops"])
            flops = flops_of_phase(settings.phase, forward, training - forward)
    return Workload(
        name="image",
        model=model,
        unit="images",
        items_per_step=settings.batch_size,
        make_batches=functools.partial(image_batches, sizes),
        loss="cross_entropy",
        sizes=sizes,
        parameters=parameters,
        flops_per_item=flops,
        has_convolutions=True,
        has_pipeline=True,
        item_bytes=4 * 3 * side**2,  # float32
        columns={"image_size": side, "data": "synthetic"},
    )


def image_batches(sizes, batch_size, seed):
    """Make seeded batches of normal noise with a brightness and a colour of each image, as photographs have.

    All numbers together have mean 0 and variance 1, as normalised photographs. Zeros would run faster and draw less
    power. In a large batch the noise repeats, at other places of each image, because 1,024 images of 224 pixels would
    take three seconds. Outputs for images of pure noise would hardly differ, by 2 % in a ResNet-50.

    Yields:
        (images, labels): float32 of shape (batch_size, 3, side, side), int64 of shape (batch_size,).
    """
    random = np.random.default_rng(seed)
    shape = (batch_size, 3, sizes.side, sizes.side)
    for _ in range(RESIDENT_BATCHES):
        numbers = random.standard_normal(min(math.prod(shape), MOST_NUMBERS), dtype=np.float32)
        images = np.resize(numbers, shape)
        images *= SHARE
        images += SHARE * random.standard_normal((batch_size, 3, 1, 1), dtype=np.float32)
        yield images, random.integers(sizes.classes, size=batch_size)


if __name__ == "__main__":
    sys.exit(benchmark("image", image_workload))
