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

from bench.frameworks import check
from bench.host import resources
from bench.timing import MeasurementError

LOSS_SCALE = 256  # PyTorch's and Keras's defaults overflow until they are halved often enough, and skip those updates
# For each parameter while a model is in float32 on the CPU: 4, and 2 for its copy in 16 bits.
HOST_BYTES = 6
# The factor of a probe's inputs: they and their sums overflow in float16, but not with float32's exponents.
PROBE_SCALE = 2.0**16
# What check_model() compares, in order: an inference has only the first, a large model has no third.
PARTS = ("output", "gradient of the last layer", "gradient of the first layer")

_probed = {}  # precisions by context, device, setting and operator: a CPU may need seconds for one in float16


@dataclass(frozen=True)
class Stream:
    """An endless series of batches from JPEG files. The workers stop when the iterator is deleted."""

    batches: Iterator  # tuples (*inputs, target) on the host
    num_workers: int
    queue_steps: int  # batches that may be ready or in progress


class Model(ABC):
    """A model on its device, and the parts of its training.

    A batch is a tuple of arrays on the device: the model's inputs, then the target of the workload's loss.
    """

    loss: Any  # mean of the last batch, without its graph
    last_weight: Any  # a weight that each step of training changes
    last_gradient: Any  # the gradient of last_weight

    @abstractmethod
    def infer(self, *inputs):
        """Compute the output without gradients; its first axis is that of the items."""

    @abstractmethod
    def forward(self, *batch):
        """Compute the forward pass of training and its loss; keep what the backward pass needs."""

    @abstractmethod
    def backward(self):
        """Compute the gradients of the last forward pass and keep them."""

    @abstractmethod
    def update(self):
        """Run the optimizer's step with the gradients of the last backward pass."""

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

    def train(self, *batch):
        """Run one step of training."""
        self.forward(*batch)
        self.backward()
        self.update()

    def predict(self, *inputs):
        """Return the output between two steps of training, as NumPy."""
        return np.asarray(self.infer(*inputs))

    def prove_compiled(self, *inputs):
        """Raise MeasurementError unless the compiled model computes what the uncompiled one computes."""


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
    def extend_uncompiled(self, tokens):
        """Do what extend() does, without the compiler."""

    def infer(self, place, tokens):
        """Return the logits of tokens that follow this many others in the cache."""
        self.seek(place)
        return self.extend(tokens)


class DeviceContext(ABC):
    """Where and how a framework computes: device, precision, compilation, memory."""

    measured_precision: str | None = None  # as check.name_precision() names it; None without a model or operator
    compares_compiled = False  # whether compiled results must be those of the uncompiled model
    fixed_limit: float  # the largest error in any network; a repetition may differ by a tenth of it
    spread: float  # by which references() disturbs weights and inputs; 0: not at all
    least_limit: float  # the smallest limit of any model's error
    output_error: float | None = None  # the output's for a pair of items, against float32 on the CPU
    output_limit: float | None = None  # the limit for that error in this model
    note = ""  # what a reader of its rows has to know

    builders: dict[str, Callable]  # by the name of a workload: (workload) -> the framework's own kind of model
    operators: dict[str, Callable]  # by name: (*operands) -> output, without gradients

    @staticmethod
    @abstractmethod
    def image_models():
        """Return the names of the image models that can be built."""

    @abstractmethod
    def build(self, workload, is_trained):
        """Return the Model of a workload, which check_model() has accepted."""

    def build_cached(self, workload, ids):
        """Return (CachedModel, references() of the logits after some tokens), if the framework has language models.

        The second is None if nothing is compared.

        Args:
            ids: the tokens of some sequences in NumPy.
        """

    @abstractmethod
    def put(self, *arrays):
        """Return a batch on the device: floats in this precision, images in this memory format."""

    @abstractmethod
    def open_stream(self, workload, settings, phase):
        """Return a Stream of batches from JPEG files."""

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
        """Return the norm of values, a float, once they are computed; that of a single value may always be zero."""

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

    def __init__(self, device, settings, compares=True):
        """Store the settings. compares: whether models are compared with the CPU."""
        self.device = device
        self.precision = settings.precision
        self.compile = settings.compile or False  # None in a command that does not use it
        self.seed = settings.seed
        self.optimizer = settings.optimizer
        self.traces = 0  # how often a function was compiled since the session was opened
        self.weight_bits = settings.weight_bits
        has_short_numbers = self.precision not in ("float32", "float64") or self.weight_bits
        self.needs_references = compares and (device != "cpu" or has_short_numbers)

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

    def reset_peak_memory(self):
        """Reset the peak memory counter."""

    def peak_memory_bytes(self):
        """Return the most memory that this session allocated on the device; None if the framework cannot tell."""

    def notes(self):
        """Return what a reader of a row has to know, once the row is measured."""
        return self.note

    def release(self):
        """Free what a closed session leaves behind."""

    def measure_precision(self, has_convolutions):
        """Set measured_precision, what this device really computes in, and what follows from it for the checks.

        Raises:
            MeasurementError: `wrong_output` for float16 under another name, `unsupported` for TF32 that is not there.
        """
        names = ["matmul", "convolution"] if has_convolutions else ["matmul"]
        if self.precision in check.EIGHT_BITS:  # compared with exact products instead
            precisions = {"matmul": self.precision}
        else:
            precisions = {name: self._probe_once(name) for name in names}
        self.measured_precision = precisions["matmul"]
        if len(set(precisions.values())) > 1:
            self.measured_precision = ", ".join(f"{name} {computed}" for name, computed in precisions.items())
        if self.precision == "tf32" and "tf32" not in self.measured_precision:
            raise MeasurementError("unsupported", f"this {self.device} has no TF32: it computes in float32")
        # What follows for the checks. In float32 nothing is disturbed, and both limits are MAX_RELATIVE_ERROR.
        is_exact = check.is_exact(self.measured_precision)
        # In 16 bits another order of rounding changes outputs by 10 %.
        self.compares_compiled = self.compile and is_exact
        self.fixed_limit = check.MAX_RELATIVE_ERROR if is_exact else check.MAX_ROUGH_ERROR
        spreads = [check.SPREADS.get(precision, 0) for precision in precisions.values()]
        self.spread = 0 if "lower" in precisions.values() else max(spreads)
        # Metal's Winograd convolutions are wrong by up to 5.7 % each, and what that adds up to is unknown.
        is_predicted = self.spread and not (has_convolutions and self.device == "mps")
        self.least_limit = check.MAX_RELATIVE_ERROR if is_predicted else self.fixed_limit

    def _probe_once(self, name):
        key = type(self), self.device, self.precision, self.weight_bits, name
        if key not in _probed:
            left, right, exact = check.probe_inputs(name)
            scale = 1 if self.precision in ("float16", "mixed_float16") else np.float32(PROBE_SCALE)
            got, is_float16 = self.probe(name, left * scale, right * scale)
            reason = f"a {name} of large {self.precision} numbers overflows, as in float16"
            check.require(np.isfinite(got).all() and got.any(), reason)
            error = check.relative_error(got.astype(np.float64) / float(scale) ** 2, exact[: len(got)])
            _probed[key] = check.name_precision(error, is_float16)
        return _probed[key]

    def batches_of_two(self, workload):
        """Return the batches of two items, as NumPy, with which a model is prepared and checked."""
        return (workload.make_checked or workload.make_batches)(2, self.seed)

    def repeat_pair(self, workload, pair):
        """Repeat a pair on a GPU, whose kernels depend on the number of items, until it fills the timed batch."""
        # Items of make_checked() are smaller: repeated, they would not give the timed batch.
        is_repeated = self.device != "cpu" and not workload.make_checked
        times = math.ceil(workload.items_per_step / 2) if is_repeated else 1
        return tuple(np.concatenate([each] * times) for each in pair)

    def can_compare(self, parameters):
        """Whether a model is compared with the CPU, which needs memory for it in float32; notes a lack of that."""
        has_memory = HOST_BYTES * parameters < resources.available_bytes()
        if self.needs_references and not has_memory:
            self.note = "not compared with the CPU, which has too little memory for this model in float32"
        return self.needs_references and has_memory

    def references(self, evaluate, arrays):
        """Return what evaluate(spread) computes on the CPU in float32, and the same disturbed as rounding does it.

        Weights and inputs in `arrays` are disturbed here, in place; evaluate(spread) disturbs those that are not in it.
        """
        expected = disturbed = evaluate(0)
        if self.spread:
            check.disturb(arrays, self.spread)
            disturbed = evaluate(self.spread)
            check.disturb(arrays, self.spread, np.divide)
        return expected, disturbed

    def check_model(self, evaluate, references):
        """Raise MeasurementError unless a model is right for pairs of items; stores the error of its output.

        Args:
            evaluate: () -> PARTS as NumPy arrays from the device, for repeat_pair() of a pair of items: uncompiled,
                without dropout, BatchNorm with its running statistics. The layers' gradients are those of the weights.
            references: references() of the pair; None if nothing is compared.
        """
        got, again = evaluate(), evaluate()
        # In float16 a first layer's gradient may overflow, and deep models magnify another order of its sums.
        for name, first, second in zip(PARTS[:2], got, again, strict=False):
            check.require(np.isfinite(first).all(), f"the {name} has infinities or NaN")
            check.require(np.any(first), f"the {name} is all zero")
            check.check_equal(second, first, self.fixed_limit / 10, f"equal inputs give a different {name}")
        check.require(not np.array_equal(*got[0][:2]), "two different items give the same output")
        if not references:  # as for an uncompiled model in float32 on a CPU
            return
        for name, computed, expected, disturbed in zip(PARTS, got, *references, strict=False):
            rounding = check.relative_error(disturbed, expected)
            limit = check.limit_by_rounding(rounding, check.MAX_ROUGH_ERROR if name == PARTS[2] else self.least_limit)
            # The output has several pairs of items; a gradient is a mean, one for all of them.
            pairs = np.split(computed, len(computed) // len(expected))
            error = max(check.relative_error(pair, expected) for pair in pairs)
            if name == PARTS[0]:
                self.output_error = error
                self.output_limit = limit
            if limit is None and name == PARTS[0]:
                self.note = f"not compared with the CPU: rounding alone changes the output by {rounding:.0%}"
            difference = f"the {name} differs from the CPU's in float32 by {error:.1e} (relative L2)"
            check.require(limit is None or error <= limit, f"{difference}, limit {limit or 0:.1e}")
