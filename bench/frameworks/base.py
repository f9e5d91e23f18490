"""Define what a framework's file implements: a DeviceContext, a Model and, for language models, a CachedModel.

session.py builds everything that is timed from these classes. This file imports no framework.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.host import resources
from bench.timing import check
from bench.timing.measure import MeasurementError

LOSS_SCALE = 256  # PyTorch's and Keras's defaults overflow until they are halved often enough, and skip those updates


@dataclass(frozen=True)
class Stream:
    """An endless series of batches from JPEG files. The workers stop when the iterator is deleted."""

    batches: Iterator  # of (*inputs, target) on the host
    num_workers: int
    queue_steps: int  # batches that may be ready or in a worker's hands


class Model(ABC):
    """A model on its device, and the parts of its training.

    A batch is a tuple of arrays on the device: the model's inputs, then the target of the workload's loss.
    """

    parameters: int  # trainable
    loss: Any  # mean of the last batch, without its graph
    last_weight: Any
    last_gradient: Any  # of last_weight

    @abstractmethod
    def infer(self, *inputs):
        """Return the model's output, without gradients; its first axis is that of the items."""

    @abstractmethod
    def train(self, *batch):
        """Run one step of training: forward, backward and update."""

    @abstractmethod
    def forward(self, *batch):
        """Run the forward pass of training and its loss, and keep what the backward pass needs."""

    @abstractmethod
    def backward(self):
        """Run the backward pass, and keep the gradients."""

    @abstractmethod
    def update(self):
        """Run the optimizer's step."""

    @abstractmethod
    def updates(self):
        """Return how many steps the optimizer has counted, in PyTorch its calls; None if it may skip some."""

    def predict(self, *inputs):
        """Return the output between two steps of training, as NumPy."""
        return np.asarray(self.infer(*inputs))

    def check_frozen(self):
        """Raise MeasurementError if training changed a weight that it must not change."""

    def prove_compiled(self, *inputs):
        """Raise MeasurementError unless the compiled model computes what the uncompiled one computes."""

    def trace_count(self):
        """Return how often the framework has compiled a function of this model."""
        return 0


class CachedModel(ABC):
    """A language model with a cache of keys and values. Tokens are ids on the device, of shape (sequences, count)."""

    parameters: int  # trainable

    @abstractmethod
    def open_cache(self, sequences, tokens):
        """Replace the cache with an empty one that has room for this number of tokens of each sequence."""

    @abstractmethod
    def seek(self, length):
        """Truncate the cache to its first `length` tokens."""

    @abstractmethod
    def extend(self, tokens):
        """Append tokens to the cache; returns the logits of the last one, of shape (sequences, vocabulary)."""

    @abstractmethod
    def extend_uncompiled(self, tokens):
        """Do the same without the compiler."""

    @abstractmethod
    def predict_on_cpu(self, tokens):
        """Return the same logits from the CPU, in the same precision and without a cache, as NumPy."""

    def trace_count(self):
        """Return how often the framework has compiled a function of this model."""
        return 0


class DeviceContext(ABC):
    """Where and how a framework computes: device, precision, compilation, memory."""

    measured_precision: str
    output_error: float | None = None  # of a pair of items in this precision, against float64 on the CPU
    magnification = 1  # of rounding errors on the CPU over those of float32, in compare()
    output_limit = check.MAX_RELATIVE_ERROR  # of a model's output, as check.output_limit() computes it

    def __init__(self, device, settings):
        self.device, self.precision = device, settings.precision
        self.compile, self.compile_mode = settings.compile not in (None, "0"), settings.compile
        self.seed, self.optimizer = settings.seed, settings.optimizer
        self.notes = []  # what a reader of its rows has to know
        self.compares_with_cpu = device != "cpu" or self.precision not in ("float32", "float64")
        # In 16 bits rounding order alone can change outputs by 10 %.
        self.compares_compiled = self.compile and self.precision in ("float32", "float64")

    @property
    def note(self):
        """Return all notes so far as one text."""
        return "; ".join(self.notes)

    @abstractmethod
    def build(self, workload, is_trained):
        """Build a Model and check its parameters, outputs and gradients."""

    def build_cached(self, workload) -> CachedModel:
        """Return a CachedModel; raises MeasurementError in a framework without language models."""
        raise MeasurementError("unsupported", f"this framework has no model for {workload.name}")

    @abstractmethod
    def put(self, *arrays):
        """Copy a batch to the device, with floats in this precision and images in this memory format."""

    @abstractmethod
    def gather(self, data, order, batch_size):
        """Yield batches of arrays that are on the device, in this order; the last batch may be smaller."""

    @abstractmethod
    def open_stream(self, workload, settings, phase) -> Stream:
        """Return a Stream of the workload's batches."""

    @abstractmethod
    def operator(self, name):
        """Return the function of one operator, without gradients."""

    @abstractmethod
    def put_operands(self, arrays):
        """Return an operator's operands on the device: integers as they are, images in channels_last."""

    @abstractmethod
    def sample(self, output, indices):
        """Return an operator's output at these indices (channels first), float64 in NumPy."""

    @abstractmethod
    def synchronize(self):
        """Wait until all submitted work is complete."""

    @abstractmethod
    def read(self, values):
        """Wait for values; returns their norm as a float, because a single value may always be zero."""

    def keep(self, values):
        """Return values in memory that later steps do not overwrite."""
        return values

    @abstractmethod
    def as_array(self, values):
        """Return values in NumPy, at most float32."""

    def last_row(self, output):
        """Return a small part of an operator's output."""
        return output[-1, -1] if len(output.shape) > 2 else output[-1]

    def reset_peak_memory(self):
        """Reset the peak memory counter."""

    def peak_memory_bytes(self):
        """Return the most memory that this session allocated on the device; None if the framework cannot tell."""

    def reserved_memory_bytes(self):
        """Return the most memory that the framework reserved on the device; None if it cannot tell."""

    def release(self):
        """Free what a closed session leaves behind."""

    def compare(self, got, again, exact, rounded):
        """Raise MeasurementError unless a model is right for a pair of items; stores the error of its output.

        Each argument is [output, *gradients], in inference without gradients, as NumPy arrays: from the device, from
        the device again, in float64 on the CPU, and in lower precision on the CPU. The last two differ by rounding;
        both are None if nothing is compared.
        """
        expected, rounding = None, 0
        if exact:
            rounding = check.relative_error(rounded[0], exact[0]) / self.magnification
            expected = exact[0] if self.compares_with_cpu else None
        self.output_limit = check.output_limit(self.measured_precision, rounding)
        check.check_output(got[0], expected, self.output_limit)
        check.check_equal(again[0], got[0], self.output_limit, "equal inputs give outputs that differ")
        self.output_error = None if expected is None else check.relative_error(got[0], expected)
        if exact:
            roundings = [error / self.magnification for error in check.gradient_errors(rounded[1:], exact[1:])]
            check.check_gradients(got[1:], exact[1:], roundings, self.measured_precision)

    def evaluate(self, module, loss_of, ids, target):
        """Return (the logits of all tokens in NumPy, their mean loss) of a language model's batch on the device."""
        raise NotImplementedError

    def check_tokens(self, module, loss_of, workload):
        """Raise MeasurementError unless the first loss is that of random weights, and no token uses a later one."""
        ids, target = workload.make_batches(2, self.seed)[0]
        half = ids.shape[1] // 2
        changed = np.concatenate([ids[:, :half], ids[:, half:][:, ::-1]], 1)
        (logits, loss), (others, _) = (
            self.evaluate(module, loss_of, *self.put(each, target)) for each in (ids, changed)
        )
        check.check_first_loss(loss, logits)
        words = "later tokens change the logits of earlier ones"
        check.check_equal(others[:, :half], logits[:, :half], self.output_limit, words)

    def has_memory_for_gradients(self, needed):
        """Whether the host has `needed` bytes, which comparing gradients with float64 takes; notes it if not."""
        free = resources.available_bytes()
        has_memory = free is None or needed < free
        if not has_memory:
            self.notes.append("gradients were not compared with float64: too little memory")
        return has_memory

    def require_tf32(self):
        """Raise MeasurementError if TF32 is asked for and the device does not compute in it."""
        if self.precision == "tf32" and "tf32" not in self.measured_precision:
            raise MeasurementError("unsupported", f"this {self.device} has no TF32: it computes in float32")
