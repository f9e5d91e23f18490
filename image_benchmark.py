"""Images per second through an image classification model, in inference or training.

    make image
    USE_GPU=1 BATCH_SIZE=64 make image
    MODEL=mobilenet_v2 PHASE=training .venv/bin/python image_benchmark.py

`make help` lists the settings.
"""

import functools
import sys

from bench.launch import main
from bench.workloads import data
from bench.workloads.workload import Workload, image_counts

# Inputs are 224 pixels a side, as most models take them, but for these.
IMAGE_SIZE = {"inception_v3": 299}
IMAGE_SIZE |= {
    "keras-inceptionv3": 299,
    "keras-xception": 299,
    "keras-inceptionresnetv2": 299,
    "keras-nasnetlarge": 331,
}


def image_workload(settings):
    """One step is one batch of colour images, sorted into ImageNet's 1,000 classes."""
    size = settings.image_size or IMAGE_SIZE.get(settings.model, 224)
    shape, classes = (3, size, size), 1000
    parameters, flops = image_counts(settings.model, size, settings.phase)
    return Workload(
        name="image",
        model=settings.model,
        unit="images",
        items_per_step=settings.batch_size,
        item_shape=shape,
        classes=classes,
        parameters=parameters,
        flops_per_item=flops,
        batches=functools.partial(data.image_batches, shape, classes),
        columns={"image_size": size, "data": "synthetic"},
    )


if __name__ == "__main__":
    sys.exit(main("image", image_workload))
