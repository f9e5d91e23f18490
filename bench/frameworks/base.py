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

from bench.timing.proof import Proof

LOSS_SCALE = 256  # PyTorch's and Keras's defaults overflow until they are halved often enough, and skip those updates


@dataclass(frozen=True)
class Stream:
    """An endless series of batches from JPEG files. The workers stop when the iterator is deleted."""

    batches: Iterator  # tuples (*inputs, target) on the host
    num_workers: int
    queue_steps: int  # batches that may be ready or in progress
    # (batches in NumPy) -> None; raises MeasurementError unless the pictures follow when their files exchange names.
    check_pictures: Callable[[Iterator], None] | None = None


class Model(ABC):
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
    def updates(self):
        """Return how many steps the optimizer has counted; None if it may skip some."""

    @abstractmethod
    def trained_weights(self):
        """Return the arrays that training changes, in a fixed order."""

    @property
    def parameters(self):
        """Return how many parameters are trainable."""
        return sum(math.prod(weights.shape) for weights in self.trained_weights())

    def predict(self, *inputs):
        """Return the output between two steps of training, as NumPy."""
        return np.asarray(self.infer(*inputs))

    # For the proof. Its parts are NumPy arrays by their name: see OUTPUT, LAST and FIRST in bench/timing/proof.py.

    is_trained: bool
    size: int  # number of all weights, trained or not

    @abstractmethod
    def infer_uncompiled(self, *inputs):
        """Compute what infer() does, without the compiler if the framework can do so."""

    @abstractmethod
    def evaluate(self, batch, items, is_compiled=True):
        """Return {part: array} for these items of a batch: their output, and the gradients of their loss.

        In evaluation mode, by the timed function if it is the same in that mode. The loss is multiplied by LOSS_SCALE.
        Of a gradient whose norm is compared there are about proof.SAMPLED numbers.

        Args:
            items: places in the batch.
            is_compiled: whether the compiler is used, if it was asked for.
        """

    @abstractmethod
    def build_reference(self, pair, precision):
        """Return (evaluate, arrays) for Proof.compute_reference(): the same parts of items in NumPy, on the CPU.

        Args:
            pair: the items, which make up a batch.
            precision: "float32" or "float64".
        """

    def damp(self, factor):
        """Multiply what residual blocks add to their input, in place."""

    def marks(self):
        """Return {name: number} of what only steps of training change, besides weights: statistics, random numbers."""
        return {}

    def parts_without_gradient(self):
        """Return the parts whose gradient was missing or all zero in the last step; an empty set if nothing tells."""
        return set()

    def free_optimizer(self):
        """Free what only training needs."""


class CachedModel(ABC):
    """A language model with a cache of keys and values. Tokens are ids on the device, of shape (sequences, count)."""

    parameters: int  # trainable
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
    def extend_uncompiled(self, tokens, returns_all=False):
        """Do what extend() does, without the compiler; returns_all: of all tokens (sequences, count, vocabulary)."""

    @abstractmethod
    def trained_weights(self):
        """Return the weights that are arrays, in a fixed order."""

    @abstractmethod
    def build_reference(self, ids, places, precision):
        """Return (evaluate, arrays) for Proof.compute_reference(): the logits of sequences at places, on the CPU.

        Args:
            ids: NumPy (sequences, tokens).
            precision: "float32" or "float64".
        """

    def infer(self, place, tokens):
        """Return the logits of tokens that follow this many others in the cache."""
        self.seek(place)
        return self.extend(tokens)


class DeviceContext(ABC):
    """Where and how a framework computes: device, precision, compilation, memory."""

    builders: dict[str, Callable]  # by the name of a workload: (workload) -> the framework's own kind of model
    operators: dict[str, Callable]  # by name: (*operands) -> output, without gradients
    has_float64 = True  # whether the framework computes in float64 on a CPU, next to other precisions
    has_float64_convolutions = True
    proof: Proof  # of the session

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

    @abstractmethod
    def sample(self, output, indices):
        """Return an operator's output at these indices (of channels first) as float64 in NumPy."""

    @abstractmethod
    def synchronize(self):
        """Wait until all submitted work is complete."""

    @abstractmethod
    def read(self, values):
        """Return the norm of values as a float, once they are computed; for a single value it may be zero."""

    @abstractmethod
    def as_array(self, values):
        """Return values in NumPy, at most float32."""

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

    def keep(self, values):
        """Return values in memory that later steps do not overwrite."""
        return values

    def last_row(self, output):
        """Return a small part of an operator's output."""
        return output[-1, -1] if len(output.shape) > 2 else output[-1]

    @property
    def queues_steps(self):
        """Return whether operators return before the device has computed them."""
        return self.device != "cpu"

    def refuse_changed_switches(self, num_threads):
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
