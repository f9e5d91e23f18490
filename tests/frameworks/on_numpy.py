"""A whole framework in one file: a single matrix product in NumPy, real enough to be measured.

Some models fail on purpose, each in the way that its name says.
"""

import itertools

import numpy as np

from bench.frameworks import Device
from bench.settings import SettingError


def find_device(settings):
    return Device("cpu", None, np.__version__, 1)


def open_session(workload, settings, phase, scope):
    if workload.name == "matmul":
        raise SettingError("FRAMEWORK='numpy' cannot run matmul")
    if workload.model == "unknown":
        raise SettingError(f"MODEL={workload.model!r} is not in NumPy: did you mean linear?")
    if workload.model == "too_big":
        raise MemoryError("unable to allocate 9 TiB")
    if workload.model == "unsupported":
        raise NotImplementedError("NumPy has\nno such operator")
    return Session(workload, settings, scope)


class Session:
    queue_steps, num_workers, prepare = None, 0, None
    measured_precision = "float32"

    def __init__(self, workload, settings, scope):
        if scope in ("input", "end_to_end"):
            self.queue_steps, self.num_workers = 2, settings.num_workers
        self.model = workload.model
        self.steps = 0
        self.workload, self.batch_size = workload, workload.items_per_step
        pixels = int(np.prod(workload.item_shape))
        self.weights = np.random.default_rng(settings.seed).standard_normal((pixels, 10), dtype=np.float32)
        self.parameters = self.weights.size
        batches = workload.batches(workload.items_per_step, settings.seed)
        self.batches = itertools.cycle([images.reshape(len(images), -1) for images, _ in batches])
        self.output = None

    def step(self, items=None):
        self.steps += 1
        if self.model == "crashes" and self.steps == 3:
            raise RuntimeError("a kernel failed")
        if self.model == "is_interrupted":
            raise KeyboardInterrupt
        self.output = next(self.batches)[:items] @ self.weights

    def train_epoch(self, order):
        images = self.workload.dataset()[0]
        self.seen = [images[order[i : i + self.batch_size]] for i in range(0, len(order), self.batch_size)]

    def losses(self):
        return [float(len(batch)) for batch in self.seen]

    def evaluate(self):
        return 0.25

    def synchronize(self):
        pass

    def settle(self):
        pass

    def probe(self):
        return 1.0 if self.model == "is_constant" else float(np.linalg.norm(self.output))

    def peak_memory_bytes(self):
        return None

    def reserved_memory_bytes(self):
        return None

    def close(self):
        pass
