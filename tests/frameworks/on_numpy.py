"""A framework in one file, for tests of all else: a linear classifier in NumPy, real enough to be measured.

Some models fail on purpose, each in the way that its name says.
"""

import functools
import itertools

import numpy as np

from bench.frameworks import Device, base, session
from bench.timing import proof

MODELS = ["linear", "too_big", "crashes", "is_interrupted", "is_stale", "is_wrong_later"]


def find_device(settings):
    return Device("cpu", None, np.__version__, 1)


class Model(base.Model):
    def __init__(self, workload):
        if workload.model == "too_big":
            raise MemoryError("unable to allocate 9 TiB")
        self.name, self.steps, self.updated = workload.model, 0, 0
        shape = workload.sizes if workload.name == "mlp" else (3 * workload.sizes.side**2, workload.sizes.classes)
        self.weights = np.random.default_rng(0).standard_normal((shape[0], shape[-1]), dtype=np.float32) / 100

    size = 1920

    def infer_uncompiled(self, inputs):
        return inputs.reshape(len(inputs), -1) @ self.weights

    def evaluate(self, batch, items, is_compiled=True):
        inputs, target = batch
        outputs, width = self.infer_uncompiled(inputs)[items], self.weights.shape[1]
        error = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True) - np.eye(width)[target[items]]
        return {proof.OUTPUT: outputs, proof.LAST: inputs.reshape(len(inputs), -1)[items].T @ error}

    def build_reference(self, pair, precision):
        parts = self.evaluate(pair, list(range(len(pair[0]))))
        return lambda _: parts if self.is_trained else {proof.OUTPUT: parts[proof.OUTPUT]}, []

    def infer(self, inputs):
        self.steps += 1
        if self.name == "crashes" and self.steps == 3:
            raise RuntimeError("a kernel failed")
        if self.name == "is_interrupted":
            raise KeyboardInterrupt
        outputs = inputs.reshape(len(inputs), -1) @ self.weights
        if self.name == "is_wrong_later" and self.steps > 10:
            outputs *= 2
        if self.name == "is_stale":  # returns the output of the step before
            self.stale, outputs = outputs, getattr(self, "stale", outputs)
        return outputs

    def train(self, *batch):
        self.forward(*batch)
        self.backward()
        self.update()

    def forward(self, inputs, target):
        """Keep the mean cross-entropy, and its gradient by the outputs."""
        self.inputs = inputs.reshape(len(inputs), -1)
        likelihoods = np.exp(self.infer(inputs))
        likelihoods /= likelihoods.sum(1, keepdims=True)
        right = np.eye(likelihoods.shape[1])[target]
        self.loss, self.error = -np.mean(np.log(np.sum(likelihoods * right, 1))), (likelihoods - right) / len(target)

    def backward(self):
        self.gradient = self.inputs.T @ self.error

    def update(self):
        self.weights -= 1e-5 * np.sign(self.gradient)  # steps of one size: it never converges, and never stops
        self.updated += 1

    def updates(self):
        return self.updated

    def trained_weights(self):
        return [self.weights]

    @property
    def last_weight(self):  # one row is read in no time, on a busy machine too
        return self.weights[-1]

    @property
    def last_gradient(self):
        return self.gradient[-1]


class DeviceContext(base.DeviceContext):
    builders, operators = {"image": Model, "mlp": Model}, {}
    # Without operators these are never called.
    put_operands = sample = None

    @staticmethod
    def image_models():
        return MODELS

    def __init__(self, settings):
        super().__init__("cpu", settings)

    def build(self, workload, is_trained):
        model = self.builders[workload.name](workload)
        model.is_trained = is_trained
        return model

    def probe(self, name, left, right):
        if name == "matmul":
            return left @ right, False
        windows = np.lib.stride_tricks.sliding_window_view(left, (3, 3), (2, 3))
        return np.einsum("bihwyx,oiyx->bohw", windows, right, optimize=True), False

    def open_stream(self, workload, settings):
        batches = itertools.cycle(workload.make_batches(settings.batch_size, self.seed))
        return base.Stream(batches, settings.num_workers, queue_steps=2 * settings.num_workers)

    def put(self, *arrays):
        return arrays

    def as_array(self, values):
        return values

    def read(self, values):
        return float(np.sqrt(np.square(values, dtype=float).sum()))

    def synchronize(self):
        pass


open_session = functools.partial(session.open_session, DeviceContext)
