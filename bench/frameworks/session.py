"""What sessions do the same way in every framework: batches, streams, phases, epochs, closing. Imports no framework.

A framework file fills in two classes: a DeviceContext, which says where and how numbers are computed, and a Model.
The sessions here call them. Everything that is timed is a step() or train_epoch() of this file.
"""

import difflib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.frameworks import ErrorTexts, describe_failure
from bench.machine import meters, resources
from bench.settings import SettingError
from bench.timing import check
from bench.timing.measure import MeasurementError

EVALUATED_ITEMS = 1000  # in one batch of evaluate()
PROVED_TOKENS = 8  # that go through a cache one by one before anything is timed


@dataclass(frozen=True)
class Stream:
    """Batches from JPEG files, without end. The workers stop when the iterator is gone."""

    batches: Iterator  # of (inputs, labels) on the host
    num_workers: int
    queue_steps: int  # batches that may be ready or in a worker's hands


class Model:
    """A model on its device, and the parts of its training. A framework's class offers, for batches on the device:

    infer(inputs)                     outputs of shape (items, classes), without gradients
    train(inputs, labels)             one step of training: forward, backward and update
    forward(inputs, labels)           the forward pass of training; keeps what the backward pass needs
    backward()                        the backward pass; keeps the gradients
    update()                          the optimizer's step
    predict(inputs)                   outputs between two steps of training, as NumPy
    save(), restore(saved)            a copy of all weights and of the optimizer's state, and back
    """

    parameters: int  # trainable
    note = ""  # what a reader of the row has to know
    loss: Any  # mean of the last batch, without its graph
    last_weight: Any
    last_gradient: Any  # of last_weight

    def hash_weights(self):
        """A hash of the bits of all trainable weights; "" where the framework runs on one device."""
        return ""

    def prove_compiled(self, inputs):
        """Raise MeasurementError unless the compiled model gives what the uncompiled one gives."""

    def trace_count(self):
        """How often the framework compiled a function of this model."""
        return 0


class CachedModel:
    """A language model with a cache. A framework's class offers, for token ids on the device:

    open_cache(sequences, tokens)     an empty cache for so many tokens of each sequence, in place of the last one
    seek(length)                      the cache holds the first so many tokens from here on
    extend(tokens)                    reads tokens, of shape (sequences, count), after those in the cache, which then
                                      holds them too; the logits of the last one, of shape (sequences, vocabulary)
    extend_uncompiled(tokens)         the same without the compiler
    predict_on_cpu(tokens)            the same logits from the CPU, in the same precision and without a cache, as NumPy
    """

    parameters: int  # trainable
    note = ""

    def trace_count(self):
        """How often the framework compiled a function of this model."""
        return 0


class DeviceContext:
    """Where and how a framework computes: device, precision, compilation, memory. A framework's class also offers:

    build(workload, is_trained)       a Model, proved to be the right one and to give the right output
    build_cached(workload)            a CachedModel, where the framework has language models
    as_array(values)                  values in NumPy, at most float32
    open_stream(workload, settings, phase)    a Stream of the workload's batches
    operator(name)                    the function of one operator, without gradients
    put(inputs, labels)               a batch on the device, in this precision and memory format
    put_operands(arrays)              an operator's operands on the device, of a convolution in channels_last
    gather(data, order, batch_size)   yields batches of data on the device, in this order; the last one is smaller
    sample(output, indices)           an operator's output there (indices with channels first), float64 in NumPy
    read(values)                      waits for values; their norm as a float, because one of them may be a dead unit
    synchronize(probe)                returns when all submitted work is complete; probe() waits for the last step
    """

    errors: ErrorTexts
    measured_precision: str
    output_error: float | None = None  # of a pair of items in this precision, against float64 on the CPU
    has_own_memory = False  # a card's; otherwise arrays take the system's memory

    def __init__(self, device, settings):
        self.device, self.precision = device, settings.precision
        self.compile, self.compile_mode = settings.compile not in (None, "0"), settings.compile
        self.seed, self.optimizer = settings.seed, settings.optimizer
        self.compares_with_cpu = device != "cpu" or self.precision not in ("float32", "float64")
        # In 16 bits rounding order alone can change outputs by 10 %.
        self.compares_compiled = self.compile and self.precision in ("float32", "float64")

    def check_outputs(self, got, again, expected, rounding):
        """Raise MeasurementError unless the outputs for a pair of items are right; notes their error.

        Args:
            got, again: of the device, for the same pair.
            expected: in float64 from the CPU; None where nothing is compared.
            rounding: the error of the model in float32, as check.output_limit() takes it.
        """
        limit = check.output_limit(self.measured_precision, rounding)
        check.check_output(got, expected, limit)
        check.check_repeatable(got, again, limit)
        self.output_error = None if expected is None else check.relative_error(got, expected)

    def require_tf32(self):
        """Raise MeasurementError where TF32 is asked for and the device does not compute in it."""
        if self.precision == "tf32" and "tf32" not in self.measured_precision:
            raise MeasurementError("unsupported", f"this {self.device} has no TF32: it computes in float32")

    def last_row(self, output):
        """A small part of an operator's output."""
        return output[-1, -1] if len(output.shape) > 2 else output[-1]

    def reset_peak_memory(self):
        """Forget the memory that was used so far."""

    def peak_memory_bytes(self):
        return None

    def reserved_memory_bytes(self):
        return None

    def release(self):
        """Free what a closed session leaves behind."""


def refuse_unknown_workload(framework, workload, builders, operators):
    """Raise SettingError for a workload that has neither a builder nor an operator."""
    if workload.name not in builders and workload.model not in operators:
        raise SettingError(f"FRAMEWORK={framework!r} cannot run {workload.name}: it has {', '.join(builders)}")


def refuse_unknown_model(name, known, library):
    """Raise SettingError, with the nearest names, for a model that a library does not have."""
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, n=3) or known[:3]
        raise SettingError(f"MODEL={name!r} is not in {library}: did you mean {', '.join(near)}?")


def open_session(context, workload, settings, phase, scope):
    """The session of a workload in a phase and scope; raises SettingError or MeasurementError."""
    if workload.samples is not None:
        return OperatorSession(context, workload)
    if phase in ("prefill", "decode"):
        return Generation(context, workload, settings, phase)
    if scope == "input":
        return InputSession(context, context.open_stream(workload, settings, phase))
    model = build_model(context, workload, settings, is_trained=phase != "inference")
    if scope == "epoch":
        return EpochSession(context, model, workload)
    streams = scope == "end_to_end"
    batches = context.open_stream(workload, settings, phase) if streams else resident_batches(context, workload)
    return SESSIONS[phase](context, model, batches)


def build_model(context, workload, settings, is_trained):
    """The Model; an IMAGE_SIZE that the model cannot take becomes a SettingError."""
    try:
        return context.build(workload, is_trained)
    except (AssertionError, RuntimeError, ValueError) as error:
        status, _ = describe_failure(error, context.errors)
        if settings.image_size is None or status != "failed":
            raise
        raise SettingError(
            f"IMAGE_SIZE={str(settings.image_size)!r} does not suit {workload.model} ({' '.join(str(error).split())}): "
            "leave it out for the model's own size"
        ) from None


def resident_batches(context, workload):
    """Batches that stay on the device and take turns, without end."""
    return itertools.cycle([context.put(*batch) for batch in workload.batches(workload.items_per_step, context.seed)])


class BaseSession:
    """What all sessions have in common. The contract is in bench/frameworks/__init__.py."""

    prepare = parameters = measured_precision = output_error = None
    note = ""
    num_workers: int | None = None
    queue_steps: int | None = None
    watched: Any  # what probe() reads

    def __init__(self, context, batches):
        self.context, self.batches = context, batches
        if isinstance(batches, Stream):
            self.num_workers, self.queue_steps = batches.num_workers, batches.queue_steps
            self.batches = itertools.starmap(context.put, batches.batches)

    def synchronize(self):
        self.context.synchronize(self.probe)

    def settle(self):
        self.context.reset_peak_memory()

    def probe(self):
        return self.context.read(self.watched)

    def trace_count(self):
        return 0

    def peak_memory_bytes(self):
        return self.context.peak_memory_bytes()

    def reserved_memory_bytes(self):
        return self.context.reserved_memory_bytes()

    def close(self):
        if vars(self):
            context = self.context
            vars(self).clear()  # everything that holds memory or workers
            context.release()


class InputSession(BaseSession):
    """A step prepares one batch and copies it to the device; there is no model."""

    def step(self):
        images, _ = next(self.batches)
        # One row: to read a whole batch from newly mapped memory takes longer the first time than the second.
        self.watched = images[-1, -1, -1]


class OperatorSession(BaseSession):
    """A step is one operator on the next operands, called as users call it."""

    def __init__(self, context, workload):
        sets = workload.batches(workload.items_per_step, context.seed)
        super().__init__(context, itertools.cycle([context.put_operands(operands) for operands in sets]))
        self.measured_precision = context.measured_precision
        self.work = context.operator(workload.model)
        indices, expected = workload.samples(sets[0])
        got = context.sample(self.work(*next(self.batches)), indices)
        check.check_samples(got, expected, context.measured_precision)

    def step(self):
        self.output = None  # the CPU's allocator can then reuse its memory, and needs no new pages
        self.output = self.work(*next(self.batches))

    @property
    def watched(self):
        return self.context.last_row(self.output)


class ModelSession(BaseSession):
    """A session of one phase of a model."""

    def __init__(self, context, model, batches):
        super().__init__(context, batches)
        self.model = model
        self.parameters, self.note = model.parameters, model.note
        self.measured_precision, self.output_error = context.measured_precision, context.output_error

    def settle(self):
        if self.context.compares_compiled:
            inputs, _ = next(self.batches)
            self.model.prove_compiled(inputs)
            meters.reset_process_peak()  # the uncompiled model takes more
        super().settle()

    def trace_count(self):
        return self.model.trace_count()

    def hash_weights(self):
        return self.model.hash_weights()


class Inference(ModelSession):
    """A step is one forward pass without gradients."""

    def step(self):
        inputs, _ = next(self.batches)
        self.watched = self.model.infer(inputs)


class Training(ModelSession):
    """A step is forward, backward and the optimizer."""

    def step(self):
        self.model.train(*next(self.batches))

    @property
    def watched(self):
        return self.model.last_weight


class Forward(ModelSession):
    """A step is the forward pass of training, and keeps what the backward pass needs."""

    def step(self):
        self.model.forward(*next(self.batches))

    @property
    def watched(self):
        return self.model.loss


class Backward(ModelSession):
    """A step is the backward pass alone."""

    def prepare(self):
        self.model.forward(*next(self.batches))

    def step(self):
        self.model.backward()

    @property
    def watched(self):
        return self.model.last_gradient


class Optimizer(Training):
    """A step is the update of the weights alone."""

    def prepare(self):
        self.model.forward(*next(self.batches))
        self.model.backward()

    def step(self):
        self.model.update()


SESSIONS = {
    "inference": Inference,
    "training": Training,
    "forward": Forward,
    "backward": Backward,
    "optimizer": Optimizer,
}


def refuse_large_weights(context, needed):
    """Raise MemoryError for weights that do not fit in the system's memory: it would swap, or kill this process."""
    free = None if context.has_own_memory else resources.available_bytes()
    if free and needed > free:
        raise MemoryError(
            f"weights and cache take {needed / 1e9:.3g} GB and {free / 1e9:.3g} GB are free: choose a smaller MODEL, "
            "DEPTH or BATCH_SIZE, or 16 bits"
        )


def prove_logits(context, model, tokens, needed):
    """The last logits of tokens in an empty cache; raises MeasurementError where a GPU's are not those of the CPU.

    On the CPU the model has the same precision, and takes as many bytes as `needed` says: where the host lacks them,
    nothing is compared.
    """
    logits = context.as_array(model.extend_uncompiled(tokens))
    compares = context.device != "cpu" and needed < (resources.available_bytes() or 0)
    limit = check.output_limit(context.measured_precision, rounding=0)
    check.check_output(logits, model.predict_on_cpu(tokens) if compares else None, limit)
    return logits


def prove_cache(context, model, vocabulary, needed):
    """Raise MeasurementError unless tokens one by one give the last logits of all at once.

    The first round starts with an empty cache, the second with one that holds a prompt.
    """
    ids = np.random.default_rng(context.seed).integers(1, vocabulary, size=(2, PROVED_TOKENS))
    tokens, _ = context.put(ids, ids)
    model.open_cache(*ids.shape)
    expected = prove_logits(context, model, tokens, needed)
    for start in (0, PROVED_TOKENS // 2):
        model.seek(0)
        parts = [tokens[:, :start]] * bool(start) + [tokens[:, i : i + 1] for i in range(start, PROVED_TOKENS)]
        *_, got = (context.as_array(model.extend_uncompiled(part)) for part in parts)
        check.check_cache(got, expected, context.precision)


class Generation(ModelSession):
    """A step of prefill reads one batch of prompts into an empty cache; one of decode adds a token to each sequence.

    Decode starts again after DEPTH where the cache is full.
    """

    def __init__(self, context, workload, settings, phase):
        refuse_large_weights(context, workload.resident_bytes)
        model = context.build_cached(workload)
        check.check_parameters(model.parameters, workload.parameters)
        prove_cache(context, model, workload.classes, workload.resident_bytes)
        batches = [ids for ids, _ in workload.batches(settings.batch_size, context.seed)]
        model.open_cache(*batches[0].shape)
        self.start = 0
        if phase == "decode" and settings.depth:
            self.start = settings.depth
            model.extend_uncompiled(self._put(context, batches[0][:, : self.start]))
        length = 1 if phase == "decode" else settings.prompt_tokens
        places = range(self.start, batches[0].shape[1], length)
        steps = [(at, self._put(context, ids[:, at : at + length])) for ids in batches for at in places]
        super().__init__(context, model, itertools.cycle(steps))

    @staticmethod
    def _put(context, ids):
        return context.put(np.ascontiguousarray(ids), ids)[0]

    def step(self):
        place, tokens = next(self.batches)
        if place == self.start:
            self.model.seek(place)
        self.watched = self.model.extend(tokens)

    def settle(self):
        if self.context.compares_compiled:
            place, tokens = next(self.batches)
            outputs = []
            for extend in (self.model.extend, self.model.extend_uncompiled):
                self.model.seek(place)
                outputs.append(self.context.as_array(extend(tokens)))
            check.check_compiled(*outputs)
        BaseSession.settle(self)


class EpochSession(Training):
    """Whole passes over the training data, which lie on the device; batches are gathered there."""

    def __init__(self, context, model, workload):
        super().__init__(context, model, iter(()))
        train_inputs, train_labels, test_inputs, self.test_labels = workload.dataset()
        self.train_data = context.put(train_inputs, train_labels)
        self.test_inputs, _ = context.put(test_inputs, self.test_labels)
        self.batch_size = workload.items_per_step
        self._warm_up(len(train_labels))

    def _warm_up(self, count):
        """Run both sizes of batches, a whole one and the last one, and undo what they changed."""
        saved = self.model.save()
        self.train_epoch(np.arange(min(count, self.batch_size + (count % self.batch_size or self.batch_size))))
        self.model.restore(saved)

    def train_epoch(self, order):
        self._losses = []
        for batch in self.context.gather(self.train_data, order, self.batch_size):
            self.model.train(*batch)
            self._losses.append(self.model.loss)

    def losses(self):
        return [float(loss) for loss in self._losses]

    def evaluate(self):
        starts = range(0, len(self.test_labels), EVALUATED_ITEMS)
        outputs = [self.model.predict(self.test_inputs[start : start + EVALUATED_ITEMS]) for start in starts]
        return float(np.mean(np.concatenate(outputs).argmax(1) == self.test_labels))
