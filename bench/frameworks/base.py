"""Define what a framework's file implements: a DeviceContext, and a Model for it. session.py times them.

This file imports no framework. A framework defines each `name: Callable  # (arguments) -> result`; what has a default,
it defines if it can do better.
"""

import copy
import operator
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from bench.host.resources import usable_cores

LOSS_SCALE = 256  # PyTorch's and Keras's defaults overflow until they are halved often enough, and skip those updates


def end_of(values):
    """Return at most 4,096 values: a whole array of an operator takes longer to the host than its step."""
    return values[((-1,) * (values.ndim - 1) + (slice(-4096, None),))[: values.ndim]]


@contextmanager
def in_evaluation_mode(module):
    """Let a module of PyTorch or MLX compute as in inference inside, and as before afterwards."""
    usual = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(usual)


class Model:
    """A model on its device, and its training: a batch is its inputs, then the target of the workload's loss."""

    context: Any  # its DeviceContext
    size: int  # number of all weights, trained or not
    weight_bytes = 0  # that each step of decode reads: all weights as stored, but no table that is only an embedding
    loss: Any  # mean of the last batch, without its graph

    # Steps. Each submits all its work, and returns what depends on it, which the device may not have computed yet.
    infer: Callable  # (*inputs) -> the output without gradients, (items, ...); of language models: (place, tokens)
    train: Callable  # (*batch): a whole step -> a weight that it changes
    forward: Callable  # (*batch) -> loss; this and the next two only if the parts of a step can be timed
    backward: Callable  # () -> a gradient
    update: Callable  # () -> a weight that it changes

    trained_weights: Callable  # () -> {name: array} that training changes, in order; LEFT_OUT of session.py has names
    output: Callable  # (*inputs) -> the output in evaluation mode in NumPy, uncompiled; of language models the last one
    # (*batch) -> (output in NumPy, [norm of each trained tensor's gradient]) in evaluation mode, before the first step;
    # the loss is multiplied by LOSS_SCALE. TensorFlow and JAX compute it in a graph.
    gradients: Callable
    on_cpu: Callable  # () -> the same class with a context and the same weights on the CPU, in float32, uncompiled
    # (prompt, tokens): of language models: makes a cache for this number of tokens of each sequence, which has a prompt
    # (sequences, count). infer() adds tokens to it at a place; those from there on are forgotten.
    open_cache: Callable


class DeviceContext:
    """Where and how a framework computes: device, precision, compilation, memory."""

    operators: dict[str, Callable]  # by name, for make tflops: (*operands) -> output, without gradients
    build: Callable  # (workload, phase, inputs) -> its Model, with each BatchNorm as calibrate() sets it
    put: Callable  # (*arrays) -> a batch or operands on the device, floats in this precision, images in its format
    open_stream: Callable  # (workload, settings) -> endless batches of JPEG files, unless it lacks SCOPE
    synchronize: Callable  # (): waits until all submitted work is complete
    read: Callable  # (values) -> the norm of their end_of(), a float, once they are computed
    to_numpy: Callable  # (values) -> the same in NumPy, floats in float32 or float64, images with channels first
    # ("matmul" or "convolution" without padding, left, right) -> (the result, or its first rows, in NumPy, channels
    # first; whether the device's was float16), in this precision. Left and right are float32 in NumPy: matrices, or
    # images (items, channels, height, width) and kernels (outputs, inputs, height, width).
    probe: Callable
    take = staticmethod(operator.getitem)  # (array, rows) -> these rows of it
    # What some frameworks do not have. notes: () -> what a reader of a row has to know. release: () frees what a closed
    # session leaves. peak_memory_bytes: () -> the most that was allocated since reset_peak_memory().
    notes = release = reset_peak_memory = peak_memory_bytes = lambda _: None

    def __init__(self, device, settings):
        self.device = device
        self.precision = settings.precision
        self.weight_bits = settings.weight_bits
        self.seed = settings.seed
        self.optimizer = settings.optimizer
        self.compile: Any = settings.compile or False  # None in a command that does not use it
        self.reference_threads = settings.num_threads or usable_cores()  # that on_cpu() computes with
        self.traces = 0  # how often a function was compiled since the session was opened

    def on_cpu(self):
        """Return this context for a reference on the CPU, uncompiled; a framework adds float32."""
        context = copy.copy(self)
        context.device = "cpu"
        context.compile = False
        return context

    def counted(self, function):
        """Return the function for a compiler, which runs it once for each compilation."""

        def call(*arguments):
            self.traces += 1
            return function(*arguments)

        return call

    def trace_count(self):
        """Return how often the framework has compiled a function of the model that is timed."""
        return self.traces
