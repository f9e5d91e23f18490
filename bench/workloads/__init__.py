"""Workloads: their sizes, their data and their counts of FLOPs and bytes."""

from bench.settings import ROOT

# Not in cifar10.py, because the doctor needs them even if NumPy is not installed.
CIFAR10_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CIFAR10_FOLDER = ROOT / "data"
