"""Workloads: the record that describes one, their data, and operators."""

import importlib

# Of CIFAR-10. Not in cifar10.py, because the plots need them even if NumPy or pooch is not installed.
CIFAR_SIDE, CIFAR_CLASSES = 32, 10
TRAIN_IMAGES, TEST_IMAGES = 50_000, 10_000


def describe_workload(workload, settings):
    """Return the Workload of a benchmark script with these settings; "image" is image_benchmark.py."""
    script = importlib.import_module(f"{workload}_benchmark")
    return getattr(script, f"{workload}_workload")(settings)
