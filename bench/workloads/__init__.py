"""Workloads: the record that describes one, their data, and operators."""

from bench.settings import ROOT

# Not in cifar10.py, because the doctor and the plots need them even if NumPy or pooch is not installed.
CIFAR10_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CIFAR10_FOLDER = ROOT / "data"
CIFAR_SIDE, CIFAR_CLASSES = 32, 10
TRAIN_IMAGES, TEST_IMAGES = 50_000, 10_000  # of CIFAR-10
