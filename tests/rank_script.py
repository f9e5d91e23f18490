"""mlp_benchmark.py with rank 1 out of memory before a backward pass; for tests/test_ranks.py."""

import os
import sys

from bench.frameworks import session
from bench.launch import main
from mlp_benchmark import mlp_workload


def fail(self):
    raise MemoryError("unable to allocate 9 TiB")


if os.environ.get("RANK") == "1":
    session.Training.run_earlier_parts = fail

if __name__ == "__main__":
    sys.exit(main("mlp", mlp_workload))
