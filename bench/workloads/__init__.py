"""Workloads: the record that describes one, their data, and operators."""

# What CIFAR-10 has. Not in cifar10.py, because the plots need TRAIN_IMAGES but nothing that downloads or reads it.
CIFAR_SIDE = 32
CIFAR_CLASSES = 10
TRAIN_IMAGES = 50_000
TEST_IMAGES = 10_000
