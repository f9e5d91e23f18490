"""Define what a framework's file implements: a DeviceContext, a Model and, for language models, a CachedModel.

session.py builds everything that is timed from these classes. This file imports no framework. Each framework defines
the abstract methods; the other methods are defaults.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

LOSS_SCALE = 256  # PyTorch's and Keras's defaults overflow until they are halved often enough, and skip those updates
SAMPLED = 2**16  # values of a matrix that tell whether it moved
# Parts of the names of trained matrices that say nothing: a step moves some rows of a table of embeddings, and biases
# of keys in attention only by rounding.
LEFT_OUT = ("embed_tokens", "embeddings", "words.", "positions.", "types.", "bias")


@dataclass(frozen=True)
class Stream:
    """An endless series of batches from JPEG files. The workers stop when the iterator is deleted."""

    batches: Iterator  # tuples (*inputs, target) on the host
    num_workers: int
    queue_steps: int  # batches that may be ready or in progress


class Reference(ABC):
    """What the check against the CPU needs of a model (bench/check.py)."""

    context: Any  # its DeviceContext
    parameters: int  # trainable
    size: int  # number of all weights, trained or not

    @abstractmethod
    def output(self, *inputs):
        """Return the output in evaluation mode in NumPy, uncompiled if the framework can do so; of tokens the last."""

    @abstractmethod
    def on_cpu(self):
        """Return the same class with the same weights in float32 on the CPU, uncompiled."""


class Model(Reference):
    """A model on its device, and its training.

    A batch is a tuple of arrays on the device: the model's inputs, then the target of the workload's loss. If the parts
    of a step can be timed, it also has forward(*batch), backward(), update(), and last_gradient, that of last_weight.
    """

    loss: Any  # mean of the last batch, without its graph
    last_weight: Any  # a weight that each step of training changes

    @abstractmethod
    def infer(self, *inputs):
        """Compute the output without gradients; its first axis is that of the items."""

    @abstractmethod
    def train(self, *batch):
        """Run one step of training."""

    @abstractmethod
    def trained_weights(self) -> dict[str, Any]:
        """Return {name: array} of what training changes, in a fixed order."""

    @property
    def parameters(self):
        """Return how many parameters are trainable."""
        return sum(math.prod(weights.shape) for weights in self.trained_weights().values())

    @abstractmethod
    def gradients(self, *batch):
        """Return (output, [norm of each trained tensor's gradient]) in evaluation mode, before the first step.

        The output is in NumPy, the loss is multiplied by LOSS_SCALE. TensorFlow and JAX compute it in a graph.
        """

    def matrices(self):
        """Yield (name, about SAMPLED of its values in NumPy) of each trained matrix that is no table of embeddings."""
        for name, weights in self.trained_weights().items():
            if len(weights.shape) > 1 and not any(part in name for part in LEFT_OUT):
                flat = self.context.flat(weights)
                # An odd distance, because rows are powers of 2 long.
                yield name, self.context.to_numpy(flat[:: max(1, flat.shape[0] // SAMPLED) | 1])


class CachedModel(Reference):
    """A language model with a cache of keys and values. Tokens are ids on the device, of shape (sequences, count)."""

    weight_bytes: int  # that each step reads: all weights as they are stored, but no table that is only an embedding

    @abstractmethod
    def open_cache(self, sequences, tokens):
        """Replace the cache with an empty one for this number of tokens of each sequence."""

    @abstractmethod
    def seek(self, length):
        """Truncate the cache to its first tokens."""

    @abstractmethod
    def extend(self, tokens):
        """Add tokens to the cache; return the logits of the last one (sequences, vocabulary)."""

    @abstractmethod
    def fill(self, tokens):
        """Add tokens to the cache, uncompiled."""


class DeviceContext(ABC):
    """Where and how a framework computes: device, precision, compilation, memory."""

    builders: dict[str, Callable]  # by the name of a workload: (workload) -> the framework's own kind of model
    operators: dict[str, Callable]  # by name: (*operands) -> output, without gradients

    @staticmethod
    @abstractmethod
    def image_models():
        """Return the names of the image models that can be built."""

    @abstractmethod
    def build(self, workload, is_trained):
        """Return the Model of a workload, calibrated: activations neither explode nor vanish with depth."""

    def build_cached(self, workload):
        """Return the CachedModel of a workload, if the framework has language models."""
        raise NotImplementedError

    def calibration_inputs(self, workload):
        """Return the inputs in NumPy with which a model is calibrated: batches of two items, put together."""
        batches = (workload.make_checked or workload.make_batches)(2, self.seed)
        return [np.concatenate(each) for each in zip(*map(workload.inputs_of, batches), strict=True)]

    @abstractmethod
    def put(self, *arrays):
        """Return a batch on the device: floats in this precision, images in this memory format."""

    def open_stream(self, workload, settings) -> Stream:
        """Return a Stream of batches from JPEG files, if the framework has a pipeline."""
        raise NotImplementedError

    @abstractmethod
    def put_operands(self, arrays):
        """Return an operator's operands on the device; integers as they are."""

    def sample(self, output, indices):
        """Return an operator's output at these indices (of channels first) as float64 in NumPy."""
        return self.to_numpy(output)[tuple(indices)].astype(np.float64)

    @abstractmethod
    def synchronize(self):
        """Wait until all submitted work is complete."""

    @abstractmethod
    def read(self, values):
        """Return the norm of values as a float, once they are computed; for a single value it may be zero."""

    @abstractmethod
    def to_numpy(self, values):
        """Return values in NumPy, floats in float32, integers as they are, images with channels first."""

    def flat(self, values):
        """Return values with one axis."""
        return values.reshape(-1)

    @abstractmethod
    def probe(self, name, left, right):
        """Compute an operator in this precision, to find out what the hardware computes in.

        Args:
            name: "matmul" or "convolution", without padding.
            left, right: float32 in NumPy: matrices, or images (items, channels, height, width) and kernels (outputs,
                inputs, height, width).

        Returns:
            (the result, or its first rows, in NumPy, channels first; whether the device's was float16).
        """

    def __init__(self, device, settings):
        self.device = device
        self.precision = settings.precision
        self.seed = settings.seed
        self.weight_bits = settings.weight_bits
        self.compile = settings.compile or False  # None in a command that does not use it
        self.optimizer = settings.optimizer
        self.traces = 0  # how often a function was compiled since the session was opened

    def operator(self, name):
        """Return the function of one operator, as it is timed."""
        return self.operators[name]

    def batches_in_order(self, data, order, batch_size):
        """Yield batches of arrays on the device in this order; the last batch may be smaller."""
        (order,) = self.put(order)
        for start in range(0, len(order), batch_size):
            yield tuple(each[order[start : start + batch_size]] for each in data)

    def counted(self, function):
        """Return the function for a compiler, which runs it once for each compilation."""

        def call(*arguments):
            self.traces += 1
            return function(*arguments)

        return call

    def trace_count(self):
        """Return how often the framework has compiled a function of the model that is timed."""
        return self.traces

    def last_row(self, output):
        """Return a small part of an operator's output."""
        return output[-1, -1] if len(output.shape) > 2 else output[-1]

    @property
    def queues_steps(self):
        """Return whether operators return before the device has computed them."""
        return self.device != "cpu"

    def check_switches(self, num_threads):
        """Raise MeasurementError (`unsupported`) if a library has changed what the speed of this process depends on.

        Args:
            num_threads: that the row has, read before anything was built.
        """

    def reset_peak_memory(self):
        """Reset the peak memory counter."""

    def peak_memory_bytes(self):
        """Return the most memory that this session allocated on the device; None if the framework cannot tell."""

    def notes(self):
        """Return what a reader of a row has to know, once the row is measured."""
        return ""

    def release(self):
        """Free what a closed session leaves behind."""
