"""A fake framework in one file, its own reference: a linear classifier. Some models fail as their names say."""

import functools
import itertools

import numpy as np

from bench.frameworks import Device, base, session
from bench.workloads.data import CLASSES


def find_device(settings):
    return Device("cpu", None, np.__version__, 1)


class Model(base.Model):
    size = 192_000

    def __init__(self, context, workload):
        if workload.model == "too_big":
            raise MemoryError("unable to allocate 9 TiB")
        self.context, self.name, self.steps = context, workload.model, 0
        shape = workload.sizes if workload.name == "mlp" else (3 * workload.sizes**2, CLASSES)
        self.weights = np.random.default_rng(0).standard_normal((shape[0], shape[-1]), dtype=np.float32) / 100

    def trained_weights(self):
        return {"weights": self.weights}

    def output(self, inputs):
        return inputs.reshape(len(inputs), -1) @ self.weights

    def infer(self, inputs):
        self.steps += 1
        if self.name == "crashes" and self.steps == 3:
            raise RuntimeError("a kernel failed")
        if self.name == "is_interrupted":
            raise KeyboardInterrupt
        return self.output(inputs) * (2 if self.name == "is_wrong_later" and self.steps > 10 else 1)

    def forward(self, inputs, target):
        """Keep the mean cross-entropy, and its gradient by the outputs."""
        likelihoods = np.exp(self.infer(inputs))
        likelihoods /= likelihoods.sum(1, keepdims=True)
        right = np.eye(likelihoods.shape[1])[target]
        self.inputs, self.error = inputs.reshape(len(inputs), -1), (likelihoods - right) / len(target)
        self.loss = -np.mean(np.log(np.sum(likelihoods * right, 1)))
        return self.loss

    def backward(self):
        self.gradient = self.inputs.T @ self.error
        return self.gradient

    def update(self):
        self.weights -= 1e-5 * np.sign(self.gradient)  # steps of one size: it never converges, and never stops
        return self.weights

    def train(self, *batch):
        self.forward(*batch)
        self.backward()
        return self.update()

    def gradients(self, *batch):
        self.forward(*batch)
        return self.output(batch[0]), [np.linalg.norm(self.backward())]

    def on_cpu(self):
        return self


class DeviceContext(base.DeviceContext):
    synchronize = staticmethod(lambda: None)
    put = staticmethod(lambda *arrays: arrays)
    to_numpy = staticmethod(lambda values: values)
    open_stream = staticmethod(lambda work, settings: itertools.cycle(work.make_batches(settings.batch_size, 0)))
    read = staticmethod(lambda values: float(np.linalg.norm(np.atleast_1d(values)[-1])))

    def __init__(self, settings):
        super().__init__("cpu", settings)

    def build(self, workload, phase, inputs):
        return Model(self, workload)

    def probe(self, name, left, right):
        return left @ right, False


open_session = functools.partial(session.open_session, DeviceContext)
