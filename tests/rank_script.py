"""mlp_benchmark.py with a fault on rank 1, as FAULT names it; for tests/test_ranks.py."""

import os
import sys

from bench.frameworks import on_torch
from bench.launch import main
from mlp_benchmark import mlp_workload


def fail(*arguments):
    raise MemoryError("unable to allocate 9 TiB")


if os.environ.get("RANK") == "1" and os.environ.get("FAULT") == "memory":
    on_torch.Model.train = fail
if os.environ.get("RANK") == "1" and os.environ.get("FAULT") == "weights":
    on_torch.Model.hash_weights = lambda model: "other"
if os.environ.get("RANK") == "1" and os.environ.get("FAULT") == "version":
    on_torch.torch.__version__ = "2.14"

if __name__ == "__main__":
    sys.exit(main("mlp", mlp_workload))
