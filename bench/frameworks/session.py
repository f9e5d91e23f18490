"""What is timed, in every framework: sessions of one phase. Imports no framework.

A framework's file implements the classes of base.py, and the sessions here call them. Everything that is timed is a
step() or train_epoch() of this file.
"""

import difflib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from bench import check, precision
from bench.frameworks.base import Stream
from bench.settings import TRAINING, SettingError
from bench.timing import MeasurementError

EVALUATED_ITEMS = 1000  # in one batch of evaluate()


def open_session(context_class, workload, settings, scope):
    """Return the session of a workload in the settings' phase and a scope; raises SettingError or MeasurementError.

    Args:
        context_class: the framework's DeviceContext.
    """
    phase = settings.phase
    is_operator = workload.samples is not None
    name = workload.model if is_operator else workload.name
    known = context_class.operators if is_operator else context_class.builders
    if name not in known:
        raise MeasurementError("unsupported", f"{settings.framework} has no {name} here")
    if name == "image" and workload.model not in (models := context_class.image_models()):
        asked = workload.model.lower()
        near = [each for each in models if each.startswith(asked)]
        near = near or difflib.get_close_matches(asked, models, cutoff=0.55)
        advice = f"did you mean {', '.join(near[:3])}?" if near else "set another one, such as resnet50"
        kind = f"a classification model of {settings.framework}, and only those are measured"
        raise SettingError(f"MODEL={workload.model!r} is not {kind}: {advice}")
    context = context_class(settings)
    if scope == "input":
        return InputSession(context, workload, settings)
    if is_operator:
        return OperatorSession(context, workload, settings)
    if phase in ("prefill", "decode"):
        return Generation(context, context.build_cached(workload), workload, settings)
    model = context.build(workload, is_trained=phase in TRAINING)
    kind = EpochSession if scope == "epoch" else SESSIONS[phase]
    session = kind(context, model, workload, settings)
    if scope == "end_to_end":
        session.read_files()
    return session


class BaseSession:
    """One workload on one device, ready to be timed; the phase decides what a step is.

    A subclass has step(), which submits one step on the next batch and may return before it is done.
    """

    prepare: Callable[[], None] | None = None  # must run before each step, is complete when it returns, is not timed
    parameters: int | None = None  # trainable; None without a model
    weight_bytes = 0  # of a model's weights that a step of decode reads, as they are stored
    num_workers: int | None = None  # that prepare batches; None: the batches are resident
    queue_steps: int | None = None  # batches that the workers may have ready or in progress; None: resident
    stream: Stream | None = None  # where the batches come from; None: they are resident
    last_result: Any  # a tensor that depends on the last step, in training an updated weight; what read() reads
    inputs: Any  # of the last step, on the device
    precisions: dict[str, str] | None = None  # as check_precision() returns them; None before the first step
    steps_run = False  # whether check_steps_run() has passed
    first_loss: float | None = None  # of the first step of training
    output_error: float | None = None  # of two items, against the CPU

    def __init__(self, context, workload, settings):
        self.context = context
        self.workload = workload
        self.settings = settings
        self.batch_size = settings.batch_size
        self.notes = []  # what a reader of the rows has to know

    def put(self, batches):
        """Yield on the device what the steps on some batches in NumPy take, as they take it."""
        return itertools.starmap(self.context.put, batches)

    def make_resident(self, count):
        """Take resident batches of `count` items, which take turns."""
        self.batches = itertools.cycle(self.put(self.workload.make_batches(count, self.context.seed)))

    def read_files(self):
        """Take batches that workers read from JPEG files, which each step puts on the device."""
        self.stream = self.context.open_stream(self.workload, self.settings)
        self.num_workers, self.queue_steps = self.stream.num_workers, self.stream.queue_steps
        self.batches = itertools.starmap(self.context.put, self.stream.batches)

    def synchronize(self):
        """Return when all submitted work is complete."""
        self.context.synchronize()

    def read(self):
        """Wait for, and return, a number that depends on the last step."""
        return self.context.read(self.last_result)

    @property
    def queues_steps(self):
        """Return whether step() returns before the device has computed it, as it does on a GPU."""
        return self.context.queues_steps

    def trace_count(self):
        """Return how often the framework has compiled a function of the model that is timed."""
        return self.context.trace_count()

    def after_first_step(self):
        """Raise MeasurementError if the first step was not as it was asked for; reset the peak memory. Not timed.

        A first step that tries several algorithms needs memory that the work itself does not need.
        """
        if self.precisions is None:
            self.precisions = precision.check_precision(self.context, self.workload.has_convolutions)
        self.context.reset_peak_memory()

    def matrices(self):
        """Yield (name, some of its values) of each matrix that the steps move; nothing if they move none."""
        yield from ()

    def read_loss(self):
        """Return the last step's loss; None without one."""

    def copy_items(self):
        """Check what can be checked of the last step, before any other one; return what check_output() takes."""
        if self.stream:
            check.check_useful(self.context.to_numpy(self.inputs[0]), "pipeline's pictures")

    def close(self):
        """Stop the workers and free the device's memory."""
        context = self.context
        vars(self).clear()  # everything that holds memory or workers
        context.release()


class InputSession(BaseSession):
    """A step prepares one batch and copies it to the device, without a model."""

    steps_run = True  # a step returns when its batch is there

    def __init__(self, context, workload, settings):
        super().__init__(context, workload, settings)
        self.read_files()
        self.precisions = {}  # nothing is computed

    def step(self):
        self.inputs = next(self.batches)
        self.last_result = self.inputs[0][-1, -1, -1]  # one row is enough to wait for


class OperatorSession(BaseSession):
    """A step is one operator on the next operands, called as users call it."""

    def __init__(self, context, workload, settings):
        super().__init__(context, workload, settings)
        sets = workload.make_batches(workload.items_per_step, context.seed)
        sets = [(context.put_operands(operands), workload.samples(operands)) for operands in sets]
        self.batches = itertools.cycle(sets)
        self.work = context.operator(workload.model)

    def step(self):
        self.output = None  # the CPU's allocator can then reuse its memory, and needs no new pages
        operands, self.samples = next(self.batches)
        self.output = self.work(*operands)

    @property
    def last_result(self):
        return self.context.last_row(self.output)

    def copy_items(self):
        """Compare the last output at sampled places with float64."""
        indices, expected = self.samples
        rounding = list(self.precisions.values())
        if self.workload.model == "conv3x3" and self.context.device == "mps" and "16" in self.context.precision:
            rounding = ["lower"]  # Winograd's method has an error of 5.7 % in bfloat16
        check.check_samples(self.context.sample(self.output, indices), expected, rounding)


class ModelSession(BaseSession):
    """A session of one phase of a model."""

    model: Any  # a Model or CachedModel of base.py

    def __init__(self, context, model, workload, settings):
        super().__init__(context, workload, settings)
        check.check_parameters(model.parameters, workload.parameters)
        self.model = model
        self.parameters = model.parameters
        self.make_resident(settings.batch_size)

    def flops_of_item(self, inputs=None):
        """Return the FLOPs of an item with these inputs; 0 if they are unknown."""
        return (self.workload.flops_per_item or 0) * self.workload.items_per_step / self.batch_size

    def after_first_step(self):
        check.check_compiled(self.context)
        super().after_first_step()


class Inference(ModelSession):
    """A step is one forward pass without gradients."""

    def step(self):
        self.inputs = self.workload.inputs_of(next(self.batches))
        self.last_result = self.model.infer(*self.inputs)

    def read_output(self):
        """Return the last output in NumPy, which later steps do not overwrite."""
        return np.array(self.context.to_numpy(self.last_result))

    def read_inputs(self, place):
        """Return the inputs of one item of the last step in NumPy; their first axis has one place."""
        return tuple(self.context.to_numpy(each[place : place + 1]) for each in self.inputs)

    def copy_items(self):
        super().copy_items()
        return check.copy_items(self)


class Training(ModelSession):
    """A step is a whole step of training."""

    moves_weights = True

    def __init__(self, context, model, workload, settings):
        super().__init__(context, model, workload, settings)
        self.gradients = check.compute_gradients(self)
        context.traces = 0  # what was compiled for the check does not count

    def after_first_step(self):
        super().after_first_step()
        if self.gradients:
            self.output_error = check.check_gradients(self, *self.gradients)
            self.gradients = None
        if self.first_loss is None:
            self.first_loss = self.read_loss()

    def step(self):
        self.inputs = next(self.batches)
        self.model.train(*self.inputs)

    @property
    def last_result(self):
        return self.model.last_weight

    def read_loss(self):
        return self.context.read(self.model.loss)

    def matrices(self):
        if self.moves_weights:
            yield from self.model.matrices()


class Forward(Training):
    """A step is the forward pass of training."""

    moves_weights = False

    def step(self):
        self.model.forward(*next(self.batches))

    @property
    def last_result(self):
        return self.model.loss


class Backward(Forward):
    """A step is the backward pass; the forward pass comes before it."""

    def prepare(self):
        self.model.forward(*next(self.batches))
        self.context.read(self.model.loss)

    def step(self):
        self.model.backward()

    @property
    def last_result(self):
        return self.model.last_gradient


class Update(Training):
    """A step is that of the optimizer; both passes come before it."""

    def prepare(self):
        self.model.forward(*next(self.batches))
        self.context.read(self.model.loss)
        self.model.backward()
        self.context.read(self.model.last_gradient)

    def step(self):
        self.model.update()


SESSIONS = {"inference": Inference, "training": Training, "forward": Forward, "backward": Backward, "optimizer": Update}


class Generation(Inference):
    """A step of prefill reads one batch of prompts into an empty cache; one of decode adds a token to each sequence.

    When the cache is full, decode starts again after DEPTH.
    """

    def __init__(self, context, model, workload, settings):
        self.is_decode = settings.phase == "decode"
        self.start = settings.depth if self.is_decode else 0
        self.length = 1 if self.is_decode else settings.prompt_tokens
        ((ids,), *_) = workload.make_batches(settings.batch_size, context.seed)
        model.open_cache(*ids.shape)
        super().__init__(context, model, workload, settings)
        self.filled = ids[:, : self.start]  # what the cache has before a round of decode
        if self.start:
            model.fill(*context.put(np.ascontiguousarray(self.filled)))
        self.weight_bytes = model.weight_bytes
        self.has_experts = workload.sizes.num_experts > 1

    def put(self, batches):
        for (ids,) in batches:
            for place in range(self.start, ids.shape[1], self.length):
                end = place + self.length
                yield place, *self.context.put(np.ascontiguousarray(ids[:, place:end])), ids[:, self.start : end]

    @property
    def queues_steps(self):
        return super().queues_steps and (self.is_decode or not self.has_experts)  # prefill waits for their choice

    def step(self):
        place, tokens, self.inputs = next(self.batches)
        if place == self.start:
            self.model.seek(place)
        self.last_result = self.model.extend(tokens)

    def read_inputs(self, place):
        """Return the whole sequence of an item, as far as it was read."""
        return (np.concatenate([each[place : place + 1] for each in (self.filled, self.inputs)], axis=1),)

    def flops_of_item(self, inputs=None):
        return (self.workload.flops_per_item or 0) * inputs[0].shape[1]


class EpochSession(Training):
    """Whole passes over the training data, which is on the device; batches are put together there."""

    losses: list  # the loss of each step of the last epoch, still on the device

    def __init__(self, context, model, workload, settings):
        super().__init__(context, model, workload, settings)
        train_inputs, train_labels, test_inputs, self.test_labels = workload.dataset()
        self.train_data = context.put(train_inputs, train_labels)
        self.test_inputs, _ = context.put(test_inputs, self.test_labels)
        count = len(train_labels)
        # Both sizes of batches, a whole one and the last one: two updates before the first epoch.
        self.train_epoch(np.arange(min(count, self.batch_size + (count % self.batch_size or self.batch_size))))
        self.after_first_step()

    def make_resident(self, count):
        """Take no resident batches: the whole data is on the device."""

    def train_epoch(self, order):
        """Submit a step for each batch of the training data in this order; return how many."""
        self.losses = []
        for batch in self.context.batches_in_order(self.train_data, order, self.batch_size):
            self.model.train(*batch)
            self.losses.append(self.model.loss)
        return len(self.losses)

    def evaluate(self):
        """Return the share of the test data that is classified correctly."""
        starts = range(0, len(self.test_labels), EVALUATED_ITEMS)
        outputs = [self.model.output(self.test_inputs[start : start + EVALUATED_ITEMS]) for start in starts]
        return float(np.mean(np.concatenate(outputs).argmax(1) == self.test_labels))
