"""What is measured: a workload's sizes, its data and its FLOP count."""

from bench.settings import ROOT

# The doctor needs these where NumPy is not installed, so they are not in cifar10.py.
CIFAR10_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CIFAR10_FOLDER = ROOT / "data"
