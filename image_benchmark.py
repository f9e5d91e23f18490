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
import sys
from dataclasses import dataclass

from bench.run import benchmark
from bench.settings import ROOT, SettingError
from bench.workloads import data
from bench.workloads.workload import Workload, flops_of_phase

COUNTS = ROOT / "bench/workloads/flops.csv"  # written by checks/count_flops.py
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
    model = settings.model.lower()
    if model not in models and (near := difflib.get_close_matches(model, models, cutoff=0.8)):
        raise SettingError(f"MODEL={settings.model!r} is not a known model: did you mean {', '.join(near)}?")
    side = settings.image_size or IMAGE_SIZE.get(model, 224)
    sizes = ImageSizes(side)
    parameters = flops = None  # unknown for a model that flops.csv lacks
    counts = models.get(model)
    is_counted = counts and int(counts["image_size"]) == side
    if counts and (is_counted or not model.startswith("vit")):  # a ViT trains a vector for each patch
        parameters = int(counts["parameters"])
    if is_counted:
        forward = int(counts["inference_flops"])  # of convolutions and matmuls
        flops = flops_of_phase(settings.phase, forward, int(counts["training_flops"]) - forward)
    return Workload(
        name="image",
        model=model,
        unit="images",
        items_per_step=settings.batch_size,
        make_batches=functools.partial(data.image_batches, sizes),
        loss="cross_entropy",
        sizes=sizes,
        parameters=parameters,
        flops_per_item=flops,
        has_convolutions=True,
        has_pipeline=True,
        batch_bytes=settings.batch_size * 4 * 3 * side**2,  # float32
        columns={"image_size": side, "data": "synthetic"},
    )


if __name__ == "__main__":
    sys.exit(benchmark("image", image_workload))
