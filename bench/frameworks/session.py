"""What is timed, in every framework: a session of a model, of an operator, or of files. Imports no framework.

A framework's file implements the classes of base.py, and a session calls them. Everything that is timed is a step() or
train_epoch() of this file.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from bench import check, precision
from bench.frameworks import find_status
from bench.host.ranks import Group
from bench.timing import MeasurementError
from bench.workloads.data import PREFETCH

# A step by its phase: the functions of a Model that come before it, and its own. All other phases are infer().
STEPS = {"training": ("train",), "forward": ("forward",), "backward": ("forward", "backward")}
STEPS |= {"optimizer": ("forward", "backward", "update")}
CALIBRATED_ITEMS = 8  # in the batch with which a model is calibrated
SAMPLED = 2**16  # values of a matrix that tell whether it moved
KERNEL = 16  # longest side of a convolution's kernel, of which all places are among them
# Parts of the names of trained matrices that say nothing: a step moves some rows of a table of embeddings, and the
# biases of keys in attention only by rounding.
LEFT_OUT = ("embed_tokens", "embeddings", "words.", "positions.", "types.", "bias")


def open_session(context_class, workload, settings, scope, group=None):
    """Open the session that settings and scope ask for; raises SettingError or MeasurementError."""
    if workload.samples and workload.model not in context_class.operators:
        raise MeasurementError("unsupported", f"{settings.framework} has no {workload.model} here")
    given = context_class(settings), workload, settings, group or Group()
    if scope != "input":
        return OperatorSession(*given) if workload.samples else ModelSession(*given, scope)
    session = Session(*given)
    session.run = lambda images, *_: images  # a step only takes a batch from the workers, and puts it on the device
    session.precisions = {}  # nothing is computed
    session.steps_run = True  # a step ends when its batch is there
    session.read_files()
    return session


class Session:
    """One workload on one device, ready to be timed: a step calls run() on the next of `batches`."""

    run: Callable  # (the arguments of a step) -> its result
    prepare: Any = None  # () -> None: must run before each step, is not timed; None: nothing has to
    stream: Any = None  # batches from workers; None, and so are the next two: they are resident
    num_workers: int | None = None  # that prepare batches
    queue_steps: int | None = None  # batches that they may have ready or in progress
    parameters: int | None = None  # trainable; None without a model
    weight_bytes = 0  # all that a step of decode reads of the weights, as they are stored
    output_error: float | None = None  # two items', against the CPU
    precisions: dict[str, str] | None = None  # as check_precision() returns them; None before the first step
    steps_run = False  # whether check_steps_run() has passed
    model: Any = None
    is_trained = False  # whether it has a loss and gradients
    matrices = staticmethod(tuple)  # as those of a model

    def __init__(self, context, workload, settings, group):
        self.context, self.workload, self.settings, self.group = context, workload, settings, group
        self.trace_count = context.trace_count
        self.notes = []  # what a reader of the rows has to know

    def read_files(self):
        """Take batches that workers read from JPEG files, which each step puts on the device."""
        self.stream = self.context.open_stream(self.workload, self.settings)
        self.num_workers = self.settings.num_workers
        self.queue_steps = self.num_workers * (PREFETCH + 1)  # each worker has one in its hands
        self.batches = self.list_steps(self.stream)

    def list_steps(self, batches):
        """Yield (the arguments of a step, what its check needs) of batches in NumPy, which are put on the device."""
        for batch in batches:
            arguments = self.context.put(*batch)
            inputs = self.workload.inputs_of(arguments)
            yield (arguments if self.is_trained else inputs), inputs

    def step(self):
        """Submit one step on the next batch; it may return before the device has computed it."""
        self.last_result = None  # the CPU's allocator can then reuse its memory, and needs no new pages
        arguments = ()
        if not self.prepare:
            arguments, self.inputs = next(self.batches)
        self.last_result = self.run(*arguments)

    def synchronize(self):
        """Wait until all submitted work is complete, on all ranks."""
        self.context.synchronize()
        self.group.barrier()

    def read(self):
        """Wait for, and return, a number that depends on the last step, on all ranks that of rank 0."""
        return self.group.share(self.context.read(self.last_result))

    def after_first_step(self):
        """Raise MeasurementError if the first step was not as it was asked for; reset the peak memory. Not timed.

        A first step that tries several algorithms needs memory that the work itself does not need.
        """
        if self.precisions is None:
            self.precisions = precision.check_precision(self.context, self.workload.has_convolutions)
        self.context.reset_peak_memory()

    def check_last_output(self):
        """Check what can be checked of the last step, before any other one; return what check_output() takes."""
        if self.stream:
            check.check_useful(self.context.to_numpy(self.inputs[0]), "pipeline's pictures")
        return check.copy_items(self) if self.model and not self.is_trained else None

    def close(self):
        """Stop the workers and free the device's memory."""
        context = self.context
        vars(self).clear()  # everything that holds memory or workers
        context.release()


class OperatorSession(Session):
    """A step is one operator on the next operands, called as users call it."""

    def __init__(self, context, workload, settings, group):
        super().__init__(context, workload, settings, group)
        self.run = context.operators[workload.model]
        batches = workload.make_batches(settings.batch_size, context.seed)
        self.batches = itertools.cycle([(context.put(*batch), workload.samples(batch)) for batch in batches])

    def check_last_output(self):
        indices, expected = self.inputs
        got = self.context.to_numpy(self.last_result)[indices].astype(np.float64)
        check.check_samples(got, expected, self.precisions)


class ModelSession(Session):
    """A step is a function of a model, as the phase says. Epochs have all data on the device."""

    gradients: Any = None  # what check_gradients() compares after the first step
    first_loss: float | None = None  # at the first step of training

    def __init__(self, context, workload, settings, group, scope):
        super().__init__(context, workload, settings, group)
        make_batches = workload.make_checked or workload.make_batches
        batch = next(iter(make_batches(CALIBRATED_ITEMS, context.seed)))
        self.model = model = context.build(workload, settings.phase, workload.inputs_of(batch))
        self.parameters = model.size  # not that of quantised weights, which have other shapes
        if not context.weight_bits:
            self.parameters = sum(math.prod(weights.shape) for weights in model.trained_weights().values())
        check.check_parameters(self.parameters, workload.parameters)
        self.weight_bytes = model.weight_bytes
        self.is_trained = settings.phase in STEPS
        *self.before, self.run = (getattr(model, name) for name in STEPS.get(settings.phase, ("infer",)))
        self.prepare = self.run_before if self.before else None
        if scope == "end_to_end":
            self.read_files()
        elif scope != "epoch":
            batches = workload.make_batches(settings.batch_size, context.seed)
            list_steps = self.list_tokens if settings.phase in ("prefill", "decode") else self.list_steps
            self.batches = itertools.cycle([*list_steps(batches)])
        if self.is_trained and not group.ranks.rank:
            self.gradients = self.compare(check.compute_gradients, self)
            context.traces = 0  # what was compiled for the check does not count
        if scope == "epoch":
            self.put_data()

    def list_tokens(self, batches):
        """Yield the steps of prefill, a whole prompt each, or of decode, a token of each sequence after DEPTH.

        The cache has the first batch's tokens before DEPTH. The check gets each sequence as far as it was read.
        """
        (first,), *_ = batches
        is_decode = self.settings.phase == "decode"
        start, length = (self.settings.depth, 1) if is_decode else (0, first.shape[1])
        self.model.open_cache(*self.context.put(np.ascontiguousarray(first[:, :start])), first.shape[1])
        for (ids,) in batches:
            ids[:, :start] = first[:, :start]
            for place in range(start, ids.shape[1], length):
                tokens = np.ascontiguousarray(ids[:, place : place + length])
                yield (place, *self.context.put(tokens)), (ids[:, : place + length],)

    def run_before(self):
        """Submit what comes before a step, on the next batch."""
        arguments, self.inputs = next(self.batches)
        for function in self.before:
            function(*arguments)
            arguments = ()

    def read_output(self):
        """Return the last output in NumPy, which later steps do not overwrite."""
        return np.array(self.context.to_numpy(self.last_result))

    def read_inputs(self, place):
        """Return the inputs of one item of the last step in NumPy; their first axis has one place."""
        return tuple(self.context.to_numpy(each[place : place + 1]) for each in self.inputs)

    def matrices(self):
        """Yield (name, about SAMPLED of its values in NumPy) of each matrix that a step moves, but no embeddings."""
        moves = self.is_trained and self.settings.phase in ("training", "optimizer")
        for name, weights in self.model.trained_weights().items() if moves else ():
            if len(weights.shape) > 1 and not any(part in name for part in LEFT_OUT):
                step = math.isqrt(math.prod(weights.shape) // SAMPLED) | 1  # odd, because rows are powers of 2 long
                sides = tuple(slice(None, None, step if side > KERNEL else 1) for side in weights.shape)
                yield name, self.context.to_numpy(weights[sides])

    def after_first_step(self):
        check.check_compiled(self.context)
        super().after_first_step()
        if self.gradients:
            self.output_error = check.check_gradients(self, *self.gradients)
            self.gradients = None
        if self.is_trained and self.first_loss is None:
            self.first_loss = self.context.read(self.model.loss)

    def compare(self, compute, *arguments):
        """Return what a comparison with the CPU computes; None and a note if it has no memory or operator for that."""
        try:
            return compute(*arguments)
        except Exception as error:
            status, note = find_status(error)
            if isinstance(error, MeasurementError) or status == "failed":
                raise
            self.notes.append(check.NOT_COMPARED + note)
            return None

    def put_data(self):
        """Put the training and test data on the device; train once with a whole batch and once with the last one."""
        train_inputs, train_labels, test_inputs, self.test_labels = self.workload.dataset()
        self.train_data = self.context.put(train_inputs, train_labels)
        self.test_inputs, _ = self.context.put(test_inputs, self.test_labels)
        count = len(train_labels)
        size = self.settings.batch_size
        self.train_epoch(np.arange(min(count, size + (count % size or size))))
        self.after_first_step()

    def train_epoch(self, order):
        """Submit a step for each batch of the training data in this order; the last batch may be smaller."""
        self.losses = []  # one for each step, still on the device
        (rows,) = self.context.put(order)
        size = self.settings.batch_size
        for start in range(0, len(order), size):
            batch = (self.context.take(each, rows[start : start + size]) for each in self.train_data)
            self.last_result = self.model.train(*batch)
            self.losses.append(self.model.loss)

    def evaluate(self):
        """Return the share of the test data that is classified correctly."""
        return float(np.mean(self.model.output(self.test_inputs).argmax(1) == self.test_labels))
