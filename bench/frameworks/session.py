"""What is timed, in every framework: sessions of one phase and scope. Imports no framework.

A framework's file implements the classes of base.py, and the sessions here call them. Everything that is timed is a
step() or train_epoch() of this file.
"""

import difflib
import functools
import itertools
import math
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from bench.frameworks import check
from bench.frameworks.base import Stream
from bench.settings import TRAINING, SettingError
from bench.timing import MeasurementError

EVALUATED_ITEMS = 1000  # in one batch of evaluate()
KEPT_NUMBERS = 10**6  # in the largest output of which several are kept
PROVED_TOKENS = 8  # that go through a cache one by one before anything is timed
COMPARED_LAYERS = 2  # of a language model that is too large to be compared as a whole


def open_session(context_class, workload, settings, scope, compares=True):
    """Return the session of a workload in the settings' phase and a scope; raises SettingError or MeasurementError.

    Args:
        context_class: the framework's DeviceContext.
        compares: whether the model is compared with the CPU.
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
    context = context_class(settings, compares)
    if scope == "input":
        return InputSession(context, context.open_stream(workload, settings, phase))
    context.measure_precision(workload.has_convolutions)
    if is_operator:
        return OperatorSession(context, workload)
    if phase in ("prefill", "decode"):
        return Generation(context, workload, settings, phase)
    model = context.build(workload, is_trained=phase in TRAINING)
    if scope == "epoch":
        return EpochSession(context, model, workload)
    if scope == "end_to_end":
        batches = context.open_stream(workload, settings, phase)
    else:
        make_batches = functools.partial(workload.make_batches, settings.batch_size)
        batches = lambda seed: itertools.starmap(context.put, make_batches(seed))  # noqa: E731
    if phase == "inference":
        return Inference(context, model, batches, workload)
    return Training(context, model, batches, workload, phase)


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
    make_batches: Callable | None = None  # (seed) -> resident batches; None: there are none
    may_repeat = False  # whether last_result may be the same after different batches
    last_result: Any  # a tensor that depends on the last step, in training an updated weight; what read() reads

    def __init__(self, context, batches):
        """Store the context and the batches: a Stream, an iterator, or (seed) -> resident batches, which take turns."""
        self.context = context
        self.batches = batches  # resident ones are on the device; a stream's are put there by each step
        if callable(batches):
            self.make_batches = batches
            self.known, *others = batches(context.seed)
            self.batches = itertools.cycle([self.known, *others])
        if isinstance(batches, Stream):
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
        """Raise MeasurementError if the first step was not compiled, or wrongly; reset the peak memory. Not timed.

        A first step that tries several algorithms needs memory that the work itself does not need.
        """
        self.context.reset_peak_memory()

    def updates(self):
        """Return how many steps the optimizer itself has counted; None without one, or if it may skip some."""

    def checksum(self):
        """Return a tuple of numbers, at least half of which steps of training change; None if a step changes none."""

    def check_last_step(self):
        """Raise MeasurementError (`wrong_output`) unless the last step's output equals a fresh computation of it.

        Does nothing if a step cannot be repeated, as in training and in the scope input.
        """

    def check_pipeline(self):
        """Raise MeasurementError (`wrong_output`) unless a pipeline follows when its files exchange their names.

        Does nothing if the batches are resident.
        """
        if self.stream and self.stream.exchange_files and self.stream.check_pictures:
            self.stream.exchange_files()
            for _ in range(self.stream.queue_steps):  # which may have been read before
                next(self.batches)
            self.stream.check_pictures([self.context.as_array(each) for each in batch] for batch in self.batches)

    def put_new_data(self, number):
        """Let the next step use data that no step has used; return False if no batches are resident.

        Args:
            number: of this call, from 0. From 1 on, four steps on a known batch come first.
        """
        if self.make_batches:
            new = next(iter(self.make_batches((self.context.seed, number + 1))))  # at another address
            known = [self.known] * 4 if number else []
            self.batches = itertools.chain(known, [new], itertools.repeat(self.known))
        return bool(self.make_batches)

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
        self.make_sets = functools.partial(workload.make_batches, workload.items_per_step)
        self.samples_of = workload.samples
        sets = self.make_sets(context.seed)
        self.sets = [(context.put_operands(operands), self.samples_of(operands)) for operands in sets]
        super().__init__(context, itertools.cycle(self.sets))
        self.rounding = context.measured_precision
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
        check.check_samples(self.context.sample(self.output, indices), expected, self.rounding)

    def put_new_data(self, number):
        """Give one set of operands new numbers, where arrays can change at the same address, and use it next.

        An output that is kept for known operands, or for their addresses, is then old: too fast, or wrong.
        """
        new = next(iter(self.make_sets((self.context.seed, number + 1))))
        operands, _ = self.sets[0]
        self.sets[0] = self.context.renew_operands(operands, new), self.samples_of(new)
        known = self.sets[1]
        self.batches = itertools.chain([known] * 4 if number else [], [self.sets[0]], itertools.repeat(known))
        return True


class ModelSession(BaseSession):
    """A session of one phase of a model."""

    def __init__(self, context, model, batches, workload):
        super().__init__(context, batches)
        check.check_parameters(model.parameters, workload.parameters)
        self.model = model
        self.parameters = model.parameters
        self.inputs_of = workload.inputs_of
        context.traces = 0  # the checks were compiled too

    def after_first_step(self):
        if self.context.compile and self.context.trace_count() == 0:
            raise MeasurementError("unsupported", "the compiler skipped this model: it would run uncompiled")
        if self.context.compile:
            self.model.prove_compiled(*next(self.batches))
        super().after_first_step()


class Inference(ModelSession):
    """A step is one forward pass without gradients."""

    def can_keep_outputs(self):
        return math.prod(self.last_result.shape) <= KEPT_NUMBERS

    def step(self):
        self.inputs = self.inputs_of(next(self.batches))
        self.last_result = self.model.infer(*self.inputs)

    def check_last_step(self):
        last = np.array(self.context.as_array(self.last_result))
        again = self.context.as_array(self.model.infer(*self.inputs))
        check.check_last_output(last, again, self.context.fixed_limit / 10)


class Training(ModelSession):
    """A step is a whole step of training, or one part of it; prepare() then runs the parts before it."""

    may_repeat = True  # losses and weights round to one value in 16 bits

    def __init__(self, context, model, batches, workload, phase="training"):
        super().__init__(context, model, batches, workload)
        self.phase = phase
        self.prepare = self.run_earlier_parts if phase in ("backward", "optimizer") else None

    def run_earlier_parts(self):
        self.model.forward(*next(self.batches))
        self.context.read(self.model.loss)
        if self.phase == "optimizer":
            self.model.backward()
            self.context.read(self.model.last_gradient)

    def step(self):
        if self.phase == "training":
            self.model.train(*next(self.batches))
        elif self.phase == "forward":
            self.model.forward(*next(self.batches))
        elif self.phase == "backward":
            self.model.backward()
        else:
            self.model.update()

    @property
    def last_result(self):
        if self.phase == "forward":
            return self.model.loss
        return self.model.last_gradient if self.phase == "backward" else self.model.last_weight

    def updates(self):
        return self.model.updates() if self.phase in ("training", "optimizer") else None

    def checksum(self):
        if self.phase in ("training", "optimizer"):
            # BatchNorm keeps the norms of the weights before it almost as they are, and 16 bits lose small steps.
            rows = (self.context.as_array(weights[-8:]) for weights in self.model.trained_weights())
            sums = tuple(zlib.crc32(numbers.tobytes()) for numbers in rows)
            return (hash(sums),) if self.context.precision in ("float16", "bfloat16") else sums
        return None


def build_cached(context, workload):
    """Return a CachedModel; raises MeasurementError unless tokens one by one give the logits of all at once.

    The first round starts with an empty cache, the second with one that holds a prompt. Rounding may swap experts of
    nearly equal probability, so all use those that the routers choose for all tokens at once. If the CPU lacks the
    memory to compare the whole model, two layers are compared before it is built.
    """
    sizes, num_layers = workload.sizes, workload.sizes.num_layers
    if context.compares and num_layers > COMPARED_LAYERS and not context.can_compare(workload.parameters):
        build_cached(context, replace(workload, sizes=replace(sizes, num_layers=COMPARED_LAYERS)))
        if context.output_error is not None:
            context.note = f"the CPU has the memory to compare only {COMPARED_LAYERS} of {num_layers} layers"
        context.compares, context.roundings = False, {}
        context.release()
    ids = np.random.default_rng(context.seed).integers(1, sizes.vocab_size, size=(2, PROVED_TOKENS))
    model, evaluate_on_cpu, arrays = context.build_cached(workload, ids)
    (tokens,) = context.put(ids)
    model.open_cache(*ids.shape)

    def logits(start, length, chosen=()):
        """Return (logits in an empty cache, of `start` tokens, then of `length` at a time; what routed() yields)."""
        model.seek(0)
        ends = [*([0] if start else []), *range(start, PROVED_TOKENS + 1, length)]
        places = [slice(*pair) for pair in itertools.pairwise(ends)]
        with context.routed([each[:, place] for place in places for each in chosen]) as calls:
            parts = [context.as_array(model.extend_uncompiled(tokens[:, place], True)) for place in places]
        return np.concatenate(parts, 1), calls

    whole, calls = logits(0, PROVED_TOKENS)
    if sizes.num_experts > 1:
        check.require(len(calls) == num_layers, f"{len(calls)} of {num_layers} layers choose experts")
    chosen = [check.check_choice(*map(context.as_array, call)).reshape(*ids.shape, -1) for call in calls]
    expected = None
    if evaluate_on_cpu:
        with context.routed(2 * chosen):  # the second time disturbed
            expected = context.references(evaluate_on_cpu, arrays)
    context.check_model(lambda: [logits(0, PROVED_TOKENS, chosen)[0]], expected)
    for start in (0, PROVED_TOKENS // 2):
        context.compare([logits(start, 1, chosen)[0]], [whole], "differs for single tokens through the cache")
    return model


class Generation(Inference):
    """A step of prefill reads one batch of prompts into an empty cache; one of decode adds a token to each sequence.

    When the cache is full, decode starts again after DEPTH.
    """

    def __init__(self, context, workload, settings, phase):
        model = build_cached(context, workload)
        make_batches = functools.partial(workload.make_batches, settings.batch_size)
        ((ids,), *_) = make_batches(context.seed)
        model.open_cache(*ids.shape)
        self.start = 0
        if phase == "decode" and settings.depth:
            self.start = settings.depth
            model.extend_uncompiled(*context.put(np.ascontiguousarray(ids[:, : self.start])))
        length = 1 if phase == "decode" else settings.prompt_tokens
        places = range(self.start, ids.shape[1], length)
        put = lambda ids, at: (at, *context.put(np.ascontiguousarray(ids[:, at : at + length])))  # noqa: E731
        steps = lambda seed: (put(ids, at) for (ids,) in make_batches(seed) for at in places)  # noqa: E731
        super().__init__(context, model, steps, workload)
        self.weight_bytes = model.weight_bytes
        self.has_experts = workload.sizes.num_experts > 1

    @property
    def queues_steps(self):
        return super().queues_steps and not self.has_experts  # the host waits for the choice of experts

    def step(self):
        self.inputs = place, tokens = next(self.batches)
        if place == self.start:
            self.model.seek(place)
        self.last_result = self.model.extend(tokens)


class EpochSession(Training):
    """Whole passes over the training data, which is on the device; batches are put together there."""

    losses: list  # the loss of each step of the last epoch, still on the device

    def __init__(self, context, model, workload):
        super().__init__(context, model, iter(()), workload)
        train_inputs, train_labels, test_inputs, self.test_labels = workload.dataset()
        self.train_data = context.put(train_inputs, train_labels)
        self.test_inputs, _ = context.put(test_inputs, self.test_labels)
        self.batch_size = workload.items_per_step
        count = len(train_labels)
        # Both sizes of batches, a whole one and the last one: two updates before the first epoch.
        self.train_epoch(np.arange(min(count, self.batch_size + (count % self.batch_size or self.batch_size))))

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
