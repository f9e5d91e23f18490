"""What is timed, in every framework: sessions of one phase and scope. Imports no framework.

A framework's file implements the classes of base.py, and the sessions here call them. Everything that is timed is a
step() or train_epoch() of this file.
"""

import difflib
import itertools
import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.frameworks.base import Stream
from bench.settings import TRAINING, SettingError
from bench.timing import MeasurementError, proof
from bench.timing.proof import Proof

EVALUATED_ITEMS = 1000  # in one batch of evaluate()
KEPT_NUMBERS = 10**6  # in the largest output of which several are kept
ROUND_STEPS = 8  # of decode before each place whose logits are compared


def open_session(context_class, workload, settings, scope, compares=True, path=""):
    """Return the session of a workload in the settings' phase and a scope; raises SettingError or MeasurementError.

    Args:
        context_class: the framework's DeviceContext.
        compares: whether the model is compared with the CPU, as Proof takes it.
        path: the file with the numbers of the first process, as Proof takes it.
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
    context.proof = Proof(context, compares, path)
    if scope == "input":
        return InputSession(context, context.open_stream(workload, settings))
    context.proof.measure_precision(context, workload.has_convolutions)
    if is_operator:
        return OperatorSession(context, workload)
    if phase in ("prefill", "decode"):
        return Generation(context, workload, settings)
    model = context.build(workload, is_trained=phase in TRAINING)
    kind = EpochSession if scope == "epoch" else SESSIONS[phase]
    stream = context.open_stream(workload, settings) if scope == "end_to_end" else None
    return kind(context, model, workload, settings, stream)


class BaseSession:
    """One workload on one device, checked and ready to be timed; phase and scope decide what a step is.

    A subclass has step(), which submits one step on the next batch and may return before it is done.
    """

    prepare: Callable[[], None] | None = None  # must run before each step, is complete when it returns, is not timed
    parameters: int | None = None  # trainable; None without a model
    weight_bytes = 0  # of a model's weights that a step of decode reads, as they are stored
    num_workers: int | None = None  # that prepare batches; None: the batches are resident
    queue_steps: int | None = None  # batches that the workers may have ready or in progress; None: resident
    stream: Stream | None = None  # where the batches come from; None: they are resident
    refuse_wrong_result: Callable[[], None] = staticmethod(lambda: None)  # the proof after the windows
    last_result: Any  # a tensor that depends on the last step, in training an updated weight; what read() reads

    def __init__(self, context, batches):
        """Store the context and the batches: a Stream, an iterator, or (seed) -> resident batches, which take turns."""
        self.context = context
        self.proof = context.proof
        self.batches = batches  # resident ones are on the device; a stream's are put there by each step
        if callable(batches):
            self.batches = itertools.cycle(batches(context.seed))
        elif isinstance(batches, Stream):
            self.stream = batches
            self.num_workers = batches.num_workers
            self.queue_steps = batches.queue_steps
            self.batches = itertools.starmap(context.put, batches.batches)

    def synchronize(self):
        """Return when all submitted work is complete."""
        self.context.synchronize()

    def read(self, output=None):
        """Wait for, and return, a number that depends on the last step, or on a kept output of an earlier one."""
        return self.context.read(self.last_result if output is None else output)

    @property
    def queues_steps(self):
        """Return whether step() returns before the device has computed it, as it does on a GPU."""
        return self.context.queues_steps

    def keep_output(self):
        """Return last_result in memory that later steps do not overwrite."""
        return self.context.keep(self.last_result)

    def trace_count(self):
        """Return how often the framework has compiled a function of the model that is timed."""
        return self.context.trace_count()

    def can_keep_outputs(self):
        """Return whether last_result is an output of only the last step, and so small that several may be kept."""
        return False

    def after_first_step(self):
        """Raise MeasurementError if the first step was not compiled, or is useless; reset the peak memory. Not timed.

        A first step that tries several algorithms needs memory that the work itself does not need.
        """
        self.context.reset_peak_memory()

    def updates(self):
        """Return how many steps the optimizer itself has counted; None without one, or if it may skip some."""

    def checksum(self):
        """Return a tuple of numbers, at least half of which steps of training change; None if a step changes none."""

    def marks(self):
        """Return {name: number} of what each step of training changes, besides the weights."""
        return {}

    def check_last_step(self):
        """Raise MeasurementError (`wrong_output`) unless the last step's output equals a fresh computation of it.

        Does nothing if a step cannot be repeated, as in training and in the scope input.
        """

    def check_pipeline(self):
        """Raise MeasurementError (`wrong_output`) unless a pipeline follows when its files exchange their names.

        Does nothing if the batches are resident.
        """
        if self.stream and self.stream.check_pictures:
            self.stream.check_pictures([self.context.as_array(each) for each in batch] for batch in self.batches)

    def close(self):
        """Stop the workers and free the device's memory."""
        context = self.context
        vars(self).clear()  # everything that holds memory or workers
        context.release()


class InputSession(BaseSession):
    """A step prepares one batch and copies it to the device, without a model."""

    def step(self):
        images, *_ = next(self.batches)
        self.last_result = images[-1, -1, -1]  # one row is enough to wait for


class OperatorSession(BaseSession):
    """A step is one operator on the next operands, called as users call it."""

    def __init__(self, context, workload):
        sets = workload.make_batches(workload.items_per_step, context.seed)
        sets = [(context.put_operands(operands), workload.samples(operands)) for operands in sets]
        super().__init__(context, itertools.cycle(sets))
        self.rounding = context.proof.measured_precision
        if workload.model == "conv3x3" and context.device == "mps" and "16" in context.precision:
            self.rounding = "lower"  # Winograd's method has an error of 5.7 % in bfloat16
        self.work = context.operator(workload.model)
        self.step()
        self.check_last_step()

    def step(self):
        self.output = None  # the CPU's allocator can then reuse its memory, and needs no new pages
        operands, self.samples = next(self.batches)
        self.output = self.work(*operands)

    @property
    def last_result(self):
        return self.context.last_row(self.output)

    def check_last_step(self):
        """Compare the last output at sampled places with float64."""
        indices, expected = self.samples
        proof.check_samples(self.context.sample(self.output, indices), expected, self.rounding)


class ModelSession(BaseSession):
    """A session of one phase of a model."""

    model: Any  # a Model or CachedModel of base.py

    def __init__(self, context, model, workload, settings, stream=None):
        """Prepare the model's steps.

        Args:
            stream: batches from a pipeline; None: resident ones of the workload.
        """
        proof.refuse_other_parameters(model.parameters, workload.parameters)
        self.workload = workload
        self.batch_size = settings.batch_size
        self.model = model
        self.parameters = model.parameters
        super().__init__(context, stream or (lambda seed: self.put(workload.make_batches(settings.batch_size, seed))))
        self.prove_before()
        context.traces = 0  # what was compiled for the proof does not count

    def put(self, batches):
        """Yield on the device what the steps on some batches in NumPy take, as they take it."""
        return itertools.starmap(self.context.put, batches)

    def prove_before(self):
        """Compute what the proof needs of the weights before the first step."""
        self.initial = self.sum_weights()

    def sum_weights(self):
        """Return a checksum of the last rows of each weight, of experts those of the last one."""
        weights = (each[-1] if len(each.shape) == 3 else each for each in self.model.trained_weights())
        rows = (self.context.as_array(each[-8:]) for each in weights)
        return tuple(zlib.crc32(numbers.tobytes()) for numbers in rows)

    def after_first_step(self):
        proof.refuse_skipped_compilation(self.context)
        super().after_first_step()

    def free(self):
        """Free the batches, and what only training needs: the reference needs memory."""
        self.batches, self.last_result = iter(()), None


class Inference(ModelSession):
    """A step is one forward pass without gradients."""

    def can_keep_outputs(self):
        return math.prod(self.last_result.shape) <= KEPT_NUMBERS

    def step(self):
        self.inputs = self.workload.inputs_of(next(self.batches))
        self.last_result = self.model.infer(*self.inputs)

    def run_steps(self, steps):
        """Run the steps that put() yields; return the output of each, copied before the next step."""
        outputs, usual = [], self.batches
        for each in steps:
            self.batches = iter([each])
            self.step()
            outputs.append(np.array(self.context.as_array(self.last_result)))
        self.batches = usual
        return outputs

    def after_first_step(self):
        proof.refuse_useless_output(self.context.as_array(self.last_result))
        super().after_first_step()

    def check_last_step(self):
        last = np.array(self.context.as_array(self.last_result))
        again = self.context.as_array(self.model.infer(*self.inputs))
        proof.refuse_stale_output(last, again, self.proof.fixed_limit / 10)

    def refuse_wrong_result(self):
        proof.refuse_wrong_output(self)

    def free(self):
        self.inputs = None
        super().free()


class Training(ModelSession):
    """A step is a whole step of training."""

    def prove_before(self):
        self.initial = proof.evaluate_initial_weights(self)

    def step(self):
        self.model.train(*next(self.batches))

    @property
    def last_result(self):
        return self.model.last_weight

    def updates(self):
        return self.model.updates()

    def checksum(self):
        # BatchNorm keeps the norms of the weights before it almost as they are, and 16 bits lose small steps.
        sums = self.sum_weights()
        return (hash(sums),) if self.context.precision in ("float16", "bfloat16") else sums

    def marks(self):
        return self.model.marks()

    def refuse_wrong_result(self):
        proof.refuse_wrong_gradients(self)

    def free(self):
        self.batches = iter(())
        self.model.free_optimizer()


class Forward(Training):
    """A step is the forward pass of training."""

    updates, checksum = BaseSession.updates, BaseSession.checksum

    def step(self):
        self.model.forward(*next(self.batches))

    @property
    def last_result(self):
        return self.model.loss


class Backward(Training):
    """A step is the backward pass; the forward pass comes before it."""

    updates, checksum = BaseSession.updates, BaseSession.checksum

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

    def __init__(self, context, workload, settings):
        self.settings = settings
        self.is_decode = settings.phase == "decode"
        self.start = settings.depth if self.is_decode else 0
        self.length = 1 if self.is_decode else settings.prompt_tokens
        model = context.build_cached(workload)
        ((ids,), *_) = workload.make_batches(settings.batch_size, context.seed)
        model.open_cache(*ids.shape)
        super().__init__(context, model, workload, settings)
        if self.start:
            self.feed(ids[:, : self.start])
        self.weight_bytes = model.weight_bytes
        self.has_experts = workload.sizes.num_experts > 1

    def put(self, batches):
        for (ids,) in batches:
            yield from self.put_from(self.start, ids)

    def put_from(self, start, ids):
        """Yield the steps that read these tokens from a place on: (place, tokens on the device)."""
        for at in range(start, ids.shape[1], self.length):
            yield at, *self.context.put(np.ascontiguousarray(ids[:, at : at + self.length]))

    @property
    def queues_steps(self):
        return super().queues_steps and (self.is_decode or not self.has_experts)  # prefill waits for their choice

    def step(self):
        self.inputs = place, tokens = next(self.batches)
        if place == self.start:
            self.model.seek(place)
        self.last_result = self.model.extend(tokens)

    def refuse_wrong_result(self):
        proof.refuse_wrong_logits(self)

    def feed(self, ids, returns_all=False):
        """Add tokens in NumPy to the cache, uncompiled; return the last logits, or all."""
        return self.context.as_array(
            self.model.extend_uncompiled(*self.context.put(np.ascontiguousarray(ids)), returns_all)
        )

    @property
    def kept_places(self):
        """Return the places of the tokens whose logits run_new() returns."""
        last = self.start + self.settings.new_tokens - 1
        return sorted({self.start, (self.start + last) // 2, last}) if self.is_decode else [self.length - 1]

    def run_new(self, ids):
        """Run steps on a new batch of tokens; return the logits of kept_places: (sequences, vocabulary) of each.

        Of a round of decode only the steps before these places are run; the other tokens are read at once.
        """
        done, outputs = 0, []
        self.model.seek(0)
        for place in self.kept_places:
            first = max(done, self.start, place - ROUND_STEPS + 1) if self.is_decode else 0
            if first > done:
                self.feed(ids[:, done:first])
            done = place + 1
            outputs.append(self.run_steps(self.put_from(first, ids[:, :done]))[-1])
        return outputs

    def read_at_once(self, ids):
        """Return the logits of all tokens in an empty cache, uncompiled."""
        usual = self.model.cache
        self.model.open_cache(*ids.shape)
        logits = self.feed(ids, returns_all=True)
        self.model.cache = usual
        return logits

    def free(self):
        super().free()
        self.model.cache = None


class EpochSession(Training):
    """Whole passes over the training data, which is on the device; batches are put together there."""

    losses: list  # the loss of each step of the last epoch, still on the device

    def __init__(self, context, model, workload, settings, stream=None):
        super().__init__(context, model, workload, settings, iter(()))
        train_inputs, train_labels, test_inputs, self.test_labels = workload.dataset()
        self.train_data = context.put(train_inputs, train_labels)
        self.test_inputs, _ = context.put(test_inputs, self.test_labels)
        count = len(train_labels)
        # Both sizes of batches, a whole one and the last one: two updates before the first epoch.
        self.train_epoch(np.arange(min(count, self.batch_size + (count % self.batch_size or self.batch_size))))
        self.refuse_wrong_result()  # once more at the end: epochs may take hours

    def free(self):
        """Free nothing: the epochs follow."""

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
        outputs = [self.model.predict(self.test_inputs[start : start + EVALUATED_ITEMS]) for start in starts]
        return float(np.mean(np.concatenate(outputs).argmax(1) == self.test_labels))
