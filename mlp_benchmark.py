"""Images per second through a multilayer perceptron on CIFAR-10, in training or inference.

    make mlp
    EPOCHS=5 MODEL=mlp-3000-1000 make mlp
    FRAMEWORK=tensorflow DATA=synthetic .venv-tensorflow/bin/python mlp_benchmark.py

`make help` lists the settings.
"""

import functools
import sys

from bench.launch import main
from bench.settings import SettingError
from bench.workloads import cifar10
from bench.workloads.workload import CIFAR_CLASSES, CIFAR_SIDE, TRAIN_IMAGES, Workload, mlp_counts, mlp_widths


def mlp_workload(settings):
    """One step is one batch of images of 32 x 32 pixels, as vectors, sorted into ten classes."""
    parameters, flops = mlp_counts(mlp_widths(settings.model), settings.phase)
    if settings.epochs and settings.batch_size > TRAIN_IMAGES:
        raise SettingError(f"BATCH_SIZE={settings.batch_size} with EPOCHS must be at most {TRAIN_IMAGES:,}")
    data = cifar10.choose(settings.data)
    return Workload(
        name="mlp",
        model=settings.model,
        unit="images",
        items_per_step=settings.batch_size,
        item_shape=(3 * CIFAR_SIDE**2,),
        classes=CIFAR_CLASSES,
        parameters=parameters,
        flops_per_item=flops,
        batches=functools.partial(cifar10.batches, data),
        columns={"image_size": CIFAR_SIDE, "data": data},
        dataset=functools.partial(cifar10.dataset, data, settings.seed),
    )


if __name__ == "__main__":
    sys.exit(main("mlp", mlp_workload))
