"""mlp_benchmark.py with rank 1 out of memory; for tests/test_ranks.py."""

import os
import sys

from bench.frameworks import on_torch
from bench.launch import main
from mlp_benchmark import mlp_workload


def fail(*arguments):
    raise MemoryError("unable to allocate 9 TiB")


if os.environ.get("RANK") == "1":
    on_torch.Model.train = fail

if __name__ == "__main__":
    sys.exit(main("mlp", mlp_workload))
