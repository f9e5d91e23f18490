"""What is timed, in every framework: the session of one phase and scope. Imports no framework.

A framework's file implements the classes of base.py, and a session calls them. Everything that is timed is a step() or
train_epoch() of this file.
"""

import itertools
import math
from typing import Any

import numpy as np

from bench import check, precision
from bench.frameworks import find_status
from bench.settings import TRAINING
from bench.timing import MeasurementError
from bench.workloads.data import PREFETCH

# A step by its phase: the functions of a Model that come before it, and its own.
STEPS = {"inference": ("infer",), "prefill": ("infer",), "decode": ("infer",), "training": ("train",)}
STEPS |= {"forward": ("forward",), "backward": ("forward", "backward"), "optimizer": ("forward", "backward", "update")}
CALIBRATED_ITEMS = 8  # in the batch with which a model is calibrated
EVALUATED_ITEMS = 1000  # in one batch of evaluate()
SAMPLED = 2**16  # values of a matrix that tell whether it moved
KERNEL = 16  # longest side of a convolution's kernel, of which all places are among them
# Parts of the names of trained matrices that say nothing: a step moves some rows of a table of embeddings, and biases
# of keys in attention only by rounding.
LEFT_OUT = ("embed_tokens", "embeddings", "words.", "positions.", "types.", "bias")


class Session:
    """One workload on one device, ready to be timed.

    A step is a function of the model, as the phase says; or one operator on the next operands, called as users call it;
    or, in the scope input, a batch that is prepared and copied to the device. Epochs have the whole data on the device.
    """

    model: Any = None  # a Model of base.py
    is_trained = False  # whether it has a loss and gradients
    prepare: Any = None  # () -> None: must run before each step, is not timed; None: nothing has to
    parameters: int | None = None  # trainable; None without a model
    weight_bytes = 0  # of a model's weights that a step of decode reads, as they are stored
    stream: Any = None  # batches from workers; None, and so are the next two: they are resident
    num_workers: int | None = None  # that prepare batches
    queue_steps: int | None = None  # batches that they may have ready or in progress
    precisions: dict[str, str] | None = None  # as check_precision() returns them; None before the first step
    steps_run = False  # whether check_steps_run() has passed
    gradients: Any = None  # what check_gradients() compares after the first step
    first_loss: float | None = None  # of the first step of training
    output_error: float | None = None  # of two items, against the CPU

    def __init__(self, context_class, workload, settings, scope):
        """Build what the settings ask for in a DeviceContext; raises SettingError or MeasurementError."""
        if workload.samples and workload.model not in context_class.operators:
            raise MeasurementError("unsupported", f"{settings.framework} has no {workload.model} here")
        self.context, self.workload, self.settings = context_class(settings), workload, settings
        self.synchronize, self.trace_count = self.context.synchronize, self.context.trace_count
        self.notes = []  # what a reader of the rows has to know
        if scope == "input":
            self.run = lambda images, *_: images
            self.precisions, self.steps_run = {}, True  # nothing is computed, and a step ends when its batch is there
        elif workload.samples:
            self.run = self.context.operators[workload.model]
        else:
            self.open_model(settings.phase)
        if scope in ("input", "end_to_end"):
            self.read_files()
        elif scope != "epoch":
            batches = workload.make_batches(settings.batch_size, self.context.seed)
            self.batches = itertools.cycle([*self.list_steps(batches)])
        if self.is_trained:
            self.gradients = self.compare(check.compute_gradients, self)
            self.context.traces = 0  # what was compiled for the check does not count
        if scope == "epoch":
            self.put_data()

    def open_model(self, phase):
        """Build the model, and choose the functions of it that are a step."""
        make_batches = self.workload.make_checked or self.workload.make_batches
        batch = next(iter(make_batches(CALIBRATED_ITEMS, self.context.seed)))
        self.model = model = self.context.build(self.workload, phase, self.workload.inputs_of(batch))
        check.check_parameters(model.parameters, self.workload.parameters)
        self.parameters, self.weight_bytes = model.parameters, model.weight_bytes
        self.is_trained = phase in TRAINING
        *self.before, self.run = (getattr(model, name) for name in STEPS[phase])
        self.prepare = self.run_before if self.before else None

    def read_files(self):
        """Take batches that workers read from JPEG files, which each step puts on the device."""
        self.stream = self.context.open_stream(self.workload, self.settings)
        self.num_workers = self.settings.num_workers
        self.queue_steps = self.num_workers * (PREFETCH + 1)  # each worker has one in its hands
        self.batches = self.list_steps(self.stream)

    def list_steps(self, batches):
        """Yield (the arguments of a step, what its check needs) of batches in NumPy, which are put on the device."""
        if self.settings.phase in ("prefill", "decode"):
            yield from self.list_tokens(batches)
            return
        for batch in batches:
            arguments = self.context.put(*batch)
            inputs = self.workload.inputs_of(arguments)
            checked = self.workload.samples(batch) if self.workload.samples else inputs
            yield (arguments if self.is_trained else inputs), checked

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

    def step(self):
        """Submit one step on the next batch; it may return before the device has computed it."""
        self.last_result = None  # the CPU's allocator can then reuse its memory, and needs no new pages
        arguments = ()
        if not self.prepare:
            arguments, self.inputs = next(self.batches)
        self.last_result = self.run(*arguments)

    def run_before(self):
        """Submit what comes before a step, on the next batch."""
        arguments, self.inputs = next(self.batches)
        for function in self.before:
            function(*arguments)
            arguments = ()

    def read(self):
        """Wait for, and return, a number that depends on the last step."""
        return self.context.read(self.last_result)

    def read_loss(self):
        """Return the last step's loss; None without one."""
        return self.context.read(self.model.loss) if self.is_trained else None

    def read_output(self):
        """Return the last output in NumPy, which later steps do not overwrite."""
        return np.array(self.context.to_numpy(self.last_result))

    def read_inputs(self, place):
        """Return the inputs of one item of the last step in NumPy; their first axis has one place."""
        return tuple(self.context.to_numpy(each[place : place + 1]) for each in self.inputs)

    def flops_of_item(self, inputs=None):
        """Return the FLOPs of an item with these inputs; 0 if they are unknown."""
        items = self.workload.items_per_step / self.settings.batch_size
        if self.settings.phase == "decode":
            items = inputs[0].shape[1]  # all tokens of the sequence, which the reference reads at once
        return (self.workload.flops_per_item or 0) * items

    def matrices(self):
        """Yield (name, about SAMPLED of its values in NumPy) of each matrix that a step moves, but no embeddings."""
        moves = self.is_trained and self.settings.phase in ("training", "optimizer")
        for name, weights in self.model.trained_weights().items() if moves else ():
            if len(weights.shape) > 1 and not any(part in name for part in LEFT_OUT):
                step = math.isqrt(math.prod(weights.shape) // SAMPLED) | 1  # odd, because rows are powers of 2 long
                sides = tuple(slice(None, None, step if side > KERNEL else 1) for side in weights.shape)
                yield name, self.context.to_numpy(weights[sides])

    def after_first_step(self):
        """Raise MeasurementError if the first step was not as it was asked for; reset the peak memory. Not timed.

        A first step that tries several algorithms needs memory that the work itself does not need.
        """
        if self.model:
            check.check_compiled(self.context)
        if self.precisions is None:
            self.precisions = precision.check_precision(self.context, self.workload.has_convolutions)
        self.context.reset_peak_memory()
        if self.gradients:
            self.output_error = check.check_gradients(self, *self.gradients)
            self.gradients = None
        if self.first_loss is None:
            self.first_loss = self.read_loss()

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

    def copy_items(self):
        """Check what can be checked of the last step, before any other one; return what check_output() takes."""
        if self.stream:
            check.check_useful(self.context.to_numpy(self.inputs[0]), "pipeline's pictures")
        if self.workload.samples:
            indices, expected = self.inputs
            got = self.context.to_numpy(self.last_result)[indices].astype(np.float64)
            check.check_samples(got, expected, self.precisions)
        return check.copy_items(self) if self.model and not self.is_trained else None

    def close(self):
        """Stop the workers and free the device's memory."""
        context = self.context
        vars(self).clear()  # everything that holds memory or workers
        context.release()

    def put_data(self):
        """Put the training and test data on the device; train once with a whole batch and once with the last one."""
        train_inputs, train_labels, test_inputs, self.test_labels = self.workload.dataset()
        self.train_data = self.context.put(train_inputs, train_labels)
        self.test_inputs, _ = self.context.put(test_inputs, self.test_labels)
        count, size = len(train_labels), self.settings.batch_size
        self.train_epoch(np.arange(min(count, size + (count % size or size))))
        self.after_first_step()

    def train_epoch(self, order):
        """Submit a step for each batch of the training data in this order."""
        self.losses = []  # of each step, still on the device
        for batch in self.context.batches_in_order(self.train_data, order, self.settings.batch_size):
            self.last_result = self.model.train(*batch)
            self.losses.append(self.model.loss)

    def evaluate(self):
        """Return the share of the test data that is classified correctly."""
        starts = range(0, len(self.test_labels), EVALUATED_ITEMS)
        outputs = [self.model.output(self.test_inputs[start : start + EVALUATED_ITEMS]) for start in starts]
        return float(np.mean(np.concatenate(outputs).argmax(1) == self.test_labels))
