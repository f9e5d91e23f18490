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
import os
import shutil
import sys
from dataclasses import replace

from bench import child
from bench.host import resources
from bench.run import main
from bench.settings import FILES, LACKS, PARTS, ROOT, SCOPES, SettingError
from bench.workloads import data
from bench.workloads.workload import Workload, flops_of_phase

MOST_WORKERS = 16  # by default, for each device; each worker needs shared memory
COUNTS = ROOT / "bench/workloads/flops.csv"  # written by checks/count_flops.py
IMAGE_SIZE = {"inception_v3": 299}  # pixels a side; 224 for all other models


def image_workload(settings):
    """Describe the work: a step takes one batch of images, which are on the device or come from JPEG files."""
    with COUNTS.open(newline="") as lines:
        models = {row["model"]: row for row in csv.DictReader(lines)}
    model = settings.model.lower()
    if model not in models and (near := difflib.get_close_matches(model, models, cutoff=0.8)):
        raise SettingError(f"MODEL={settings.model!r} is not a known model: did you mean {', '.join(near)}?")
    side = settings.image_size or IMAGE_SIZE.get(model, 224)
    parameters = flops = None  # unknown for a model that flops.csv lacks
    counts = models.get(model)
    is_counted = counts and int(counts["image_size"]) == side
    if counts and (is_counted or not model.startswith("vit")):  # a ViT trains a vector for each patch
        parameters = int(counts["parameters"])
    if is_counted:
        forward = int(counts["inference_flops"])  # convolutions and matmuls
        flops = flops_of_phase(settings.phase, forward, int(counts["training_flops"]) - forward)
    return Workload(
        name="image",
        model=model,
        unit="images",
        items_per_step=settings.batch_size,
        make_batches=functools.partial(data.image_batches, side),
        loss="cross_entropy",
        sizes=side,
        parameters=parameters,
        flops_per_item=flops,
        has_convolutions=True,
        batch_bytes=settings.batch_size * 4 * 3 * side**2,  # float32
        columns={"image_size": side, "data": "synthetic"},
    )


def measure_image(measurer: child.Measurer, make_workload):
    """Measure the scopes that the settings ask for: device and end_to_end share one model."""
    settings, workload = measurer.settings, make_workload(measurer.settings)
    has_files = settings.phase not in PARTS and "scope" not in LACKS[settings.framework]
    scopes = ["sustained"] if settings.sustain else settings.scope or (SCOPES if has_files else ["device"])
    if not set(FILES).isdisjoint(scopes):
        workers = choose_workers(settings, workload, measurer.group)
        measurer = replace(measurer, settings=replace(settings, num_workers=workers))
    for together in (["sustained", "device", "end_to_end"], ["input"]):
        if part := [each for each in together if each in scopes]:
            measurer.measure_scopes(workload, part)


def choose_workers(settings, workload, group, shared_memory="/dev/shm"):
    """Return NUM_WORKERS, by default one for each core, up to MOST_WORKERS and as many as the shared memory holds."""
    workers = settings.num_workers
    if workers is None:
        workers = min(group.ranks.share(resources.usable_cores()), MOST_WORKERS)
        if sys.platform == "linux":  # only there it is limited; each worker shares its batches with this process
            free = shutil.disk_usage(shared_memory).free if os.access(shared_memory, os.W_OK) else 0
            needed = (data.PREFETCH + 1) * workload.batch_bytes  # for each
            if (held := group.ranks.share(free) // needed) < workers:  # without any, this process reads the files
                size = 1 + workers * needed * group.ranks.local_world_size // 2**30
                words = "%.0f MiB of shared memory hold batches of %d workers, not of %d: `docker run --shm-size=%dg`"
                child.log.warning(words, free / 2**20, held, workers, size)
                workers = held
    return min(group.gather(workers))  # equal on all ranks, because the number of steps in a window depends on it


if __name__ == "__main__":
    sys.exit(main("image", image_workload, measure_image))
