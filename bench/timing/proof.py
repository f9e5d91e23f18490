"""Prove that the work is right and that all of it is done: every check of a model, in the order of time.

    before the first step  each process      its parameters, precision and quantised weights are right; in training a
                                             pair of items is evaluated at the initial weights
    after the first step   each process      the compiler did not skip the model; in inference the output is finite, and
                                             differs between items
    before the windows     each process      steps of a window take as long as steps that are read one by one
    after the last window  each process      in training the optimizer counted every step; at least half of the weights
                                             moved (in 16 bits one), and BatchNorm's statistics and dropout's random
                                             numbers changed
    then                   each process      in inference the last output is that of its step; a pipeline gives the
                                             pictures of its files (bench/frameworks/session.py)
                           the first one     the timed function on new data agrees with the reference
                           the later ones    their numbers agree with the first one's: the same outputs, in training
                                             those of the pair at the initial weights (so do those of end_to_end)

The reference is another path of computation: the same weights on the CPU, in float64 for float32 there, otherwise in
float32. It is made after the windows, so that the first process measures like the others; only EPOCHS are also compared
before. Its inputs are two items that no step has used, chosen by the seed. In inference and prefill: one of the first
half of a new batch, and one of the second half of this batch with its halves exchanged. In decode and training: one of
each half of a new batch. The timed function computes them in a batch of the timed size. If two items take more than
MAX_REFERENCE_FLOPS, a smaller pair takes their place, in inference uncompiled. Training is compared in evaluation mode:
by the timed function if it computes the same in this mode, else (dropout, BatchNorm, and in JAX, TensorFlow and MLX) by
another one, which is compiled if the timed one is. Nothing else is compiled for the proof.

What no check sees: a clock or a counter that lies; work that is right in the proof and wrong before it, such as answers
that are kept; items of a batch that are not compared and are wrong in the same way each time. The tests prove the rest:
that the loss falls, that targets are shifted by one, that no token sees a later one.
"""

import functools
import itertools
import json
import math
import operator
import os
import resource
from pathlib import Path

import numpy as np

from bench.host import ranks, resources
from bench.timing import MeasurementError
from bench.timing.job import Job, idle_barrier_seconds, timed
from bench.workloads.operators import EIGHT_BITS

# Limits of relative L2 errors that do not depend on the network: in a lower precision than float32, in float32, and in
# float32 on a CPU that is compared with float64. A wrong kernel is wrong by about 1. Another order of float32 sums
# changes a deep model by 1e-5 to 1e-3; a ResNet-50 on an H200 differs from the CPU by 5e-7.
MAX_ROUGH_ERROR = 0.3
MAX_RELATIVE_ERROR = 0.01
MAX_CPU_ERROR = 1e-3
# The least limits that follow from R: in float32, and in TF32 and 16 bits, where the gradients of a small perceptron in
# TensorFlow differ by up to 1.6 %, with an R of 0.35 %.
LEAST_FLOAT32_ERROR = 1e-4
LEAST_ROUGH_ERROR = 0.02
# The limit of a model's error is ROUNDING_MULTIPLE times R, at most MAX_MODEL_ERROR. R is the error
# of the reference itself if each weight and input is multiplied by 1 - SPREADS to 1 + SPREADS, for
# float32 the error of a Winograd convolution. docs/method-details.md has the measurements.
MAX_MODEL_ERROR = 0.9
ROUNDING_MULTIPLE = 4
SPREADS = {"float32": 2**-17, "tf32": 2**-11, "float16": 2**-11, "bfloat16": 2**-8, "float16-accumulate": 2**-8}
DAMPING = 0.5  # of residual blocks, which otherwise amplify rounding until it explains a block that is left out
MAX_DISTURBED = 2**26  # weights in float64: for more it would take too much of a process's time
# For each parameter on the CPU: 4 or 8 for the reference, 2 for a copy in 16 bits; as much again for gradients.
HOST_BYTES = {"float32": 6, "float64": 12}
MAX_REFERENCE_FLOPS = 1e12  # of two items: half a minute on a slow CPU
# What is compared number by number; of other gradients, each of a trained weight, the norm.
OUTPUT, LAST, FIRST, ADAPTER = (
    "output",
    "gradient of the last layer",
    "gradient of the first layer",
    "gradient of adapter",
)
LEAST_GRADIENT = 1e-6  # of the largest part: a smaller one may be nothing but rounding
SAMPLED = 2**16  # numbers of a gradient whose norm is compared
STORED = 1000  # numbers of each part that later processes compare theirs with
PROOF_SEED = 1000  # of batches that no step has used
LARGE_STEPS = 8  # on two batches whose items are too large for the reference
CHECKED_TOKENS = 8  # of language models whose sequences are too long for it


def require(is_right, reason):
    """Raise MeasurementError (`wrong_output`) with this reason unless a result is right."""
    if not is_right:
        raise MeasurementError("wrong_output", reason)


def relative_error(got, expected):
    """Return the L2 norm of the difference, divided by the L2 norm of the expected values."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def check_equal(got, expected, limit, words):
    """Raise MeasurementError, in these words, unless outputs that must be equal agree up to this relative error.

    Libraries may sum in a different order the second time: most callers allow a tenth of the limit for rounding.
    """
    if not np.array_equal(got, expected):  # equal zeros have no relative error
        error = relative_error(got, expected)
        require(error <= limit, f"{words} by {error:.1e} (relative L2), limit {limit:.1e}")


# Before the first step


def refuse_other_parameters(counted, expected):
    """Raise MeasurementError unless the model has this many trainable parameters; None means unknown."""
    if expected is not None and counted != expected:
        raise MeasurementError("wrong_model", f"the model has {counted} trainable parameters, not {expected}")


def refuse_wrong_weights(steps, name):
    """Raise MeasurementError unless the restored weights of a quantised matrix are within `steps` of its scales.

    It cannot see weights that are all rounded in one direction: the output is compared with these weights.
    """
    reason = f"quantised, the weights of {name} are wrong by up to {steps:.3g} steps of their scales"
    require(steps <= MAX_RESTORED_STEPS, reason)


MAX_RESTORED_STEPS = 2  # MLX has 1.0, or 1.5 in 8 bits if the scales are bfloat16

# The factor of a probe's inputs: they and their sums overflow in float16, but not with float32's exponents.
PROBE_SCALE = 2.0**16
# Upper limits of a matmul's relative L2 error, by the significand that its inputs are rounded to (53, 24, 11 and 8
# bits), halfway between formats in powers of ten. Winograd convolutions in float32 have errors of up to 1e-5.
PRECISION_BY_ERROR = ((1e-11, "float64"), (5e-5, "float32"), (1e-3, "tf32"), (1e-2, "bfloat16"))
# Float16 outputs with the errors of TF32 and bfloat16: sums in float32, or in float16 too.
FLOAT16_NAMES = {"tf32": "float16", "bfloat16": "float16-accumulate"}
# Variables that let libraries compute float32 in fewer bits, whatever a framework asks for.
FEWER_BITS = ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE", "TF_SET_ONEDNN_FPMATH_MODE")
FEWER_BITS += ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION")
ERROR_LIMITS = {name: limit for limit, name in PRECISION_BY_ERROR}
ERROR_LIMITS |= {name: ERROR_LIMITS[like] for like, name in FLOAT16_NAMES.items()}
ERROR_LIMITS |= dict.fromkeys(EIGHT_BITS, 2e-3)  # exact operands, outputs rounded to bfloat16

_probed = {}  # precisions by context, device, setting and operator: a CPU may need seconds for one in float16


def probe_inputs(name):
    """Return two seeded normal inputs of the operator in float32, and its result in float64.

    Libraries do not use tensor cores for much smaller inputs. MLX on Metal uses Winograd's method for more channels.
    """
    random = np.random.default_rng(0)
    shapes = {"matmul": ((1024, 1024), (1024, 1024)), "convolution": ((4, 64, 32, 32), (64, 64, 3, 3))}[name]
    left, right = (random.standard_normal(shape, dtype=np.float32) for shape in shapes)
    if name == "matmul":
        return left, right, left.astype(np.float64) @ right.astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(left.astype(np.float64), (3, 3), (2, 3))
    return left, right, np.einsum("bihwyx,oiyx->bohw", windows, right.astype(np.float64), optimize=True)


def name_precision(error, is_float16=False):
    """Return the precision that the hardware computed in, from a probe's relative error against float64.

    The significands of TF32 and float16 are equally long, so is_float16 tells whether the output was float16.
    """
    precision = next((name for limit, name in PRECISION_BY_ERROR if error < limit), "lower")
    return FLOAT16_NAMES.get(precision, precision) if is_float16 else precision


def refuse_coarse_float32(device, precisions):
    """Raise MeasurementError (`unsupported`) if float32 is computed in fewer bits, naming what probably did it.

    An error of TF32 is allowed in a convolution: Winograd's method may have it.

    Args:
        precisions: as name_precision() names those of a "matmul" and a "convolution".
    """
    exact = "float64", "float32"
    for name, computed in precisions.items():
        if computed not in (exact if name == "matmul" else (*exact, "tf32")):
            switches = [f"{each}={os.environ[each]!r}" for each in FEWER_BITS if each in os.environ]
            fix = f"unset {' and '.join(switches)}" if switches else "set PRECISION=tf32 or bfloat16"
            really = "fewer bits than bfloat16 has" if computed == "lower" else computed
            raise MeasurementError("unsupported", f"this {device} computes a float32 {name} in {really}: {fix}")


# The comparison, which the checks after the windows use


class Proof:
    """What rounding may change in a session's model on its device, and what was found in the comparison.

    R, the rounding of a part of the result, is the error of the reference itself if its weights and inputs are
    disturbed by as much as the device rounds them.
    """

    measured_precision: str | None = None  # as name_precision() names it; None without a model or operator
    fixed_limit: float  # of an error if R is unknown; a repetition may differ by a tenth of it
    least_limit: float  # of an error if R is known
    spread: float  # by which compute_reference() disturbs weights and inputs; 0: not at all
    output_error: float | None = None  # of the output's compared rows, against the reference
    output_limit: float | None = None  # the limit for that error in this model
    note = ""  # what a reader of its rows has to know

    def __init__(self, context, compares=True, path=""):
        """Store what the limits depend on.

        Args:
            context: the framework's DeviceContext, which is not kept.
            compares: whether the model is compared with the reference, or else with the numbers in the file. The
                first process, which finds no file, compares (bench/child.py).
            path: of the file with the numbers that the first process of this run has checked, or "".
        """
        self.device = context.device
        self.precision = context.precision
        self.compares = compares
        self.path = Path(path) if path else None
        is_double = context.has_float64 and (self.device, self.precision) == ("cpu", "float32")
        self.reference_precision = "float64" if is_double else "float32"  # "": there is none
        self.roundings = {}  # R of each part

    def measure_precision(self, context, has_convolutions):
        """Set measured_precision, what this device really computes in, and what follows from it for the limits.

        It cannot see a precision that differs between sizes of matmuls: the model's own output is compared, too.

        Raises:
            MeasurementError: `wrong_output` for float16 under another name, `unsupported` for a TF32 that is missing
                and for float32 in fewer bits.
        """
        if has_convolutions and self.reference_precision == "float64" and not context.has_float64_convolutions:
            self.reference_precision = ""
        names = ["matmul", "convolution"] if has_convolutions else ["matmul"]
        if self.precision in EIGHT_BITS:  # compared with exact products instead
            precisions = {"matmul": self.precision}
        else:
            precisions = {name: self._probe_once(context, name) for name in names}
        self.measured_precision = precisions["matmul"]
        if len(set(precisions.values())) > 1:
            self.measured_precision = ", ".join(f"{name} {computed}" for name, computed in precisions.items())
        if self.precision == "tf32" and precisions["matmul"] != "tf32":
            computed = precisions["matmul"]
            raise MeasurementError("unsupported", f"this {self.device} has no TF32: it computes in {computed}")
        if self.precision == "float32" and not context.weight_bits:
            refuse_coarse_float32(self.device, precisions)
        # What follows for the checks. What Metal does in float32 is unknown: nobody has measured it.
        exact = {"float32", "float64"}.issuperset(precisions.values())
        is_rounded = "lower" not in precisions.values() and not (exact and self.device == "mps")
        self.spread = max(SPREADS.get(precision, 0) for precision in precisions.values()) if is_rounded else 0
        self.fixed_limit, self.least_limit = MAX_ROUGH_ERROR, LEAST_ROUGH_ERROR
        if exact:
            self.fixed_limit = MAX_CPU_ERROR if self.reference_precision == "float64" else MAX_RELATIVE_ERROR
            self.least_limit = LEAST_FLOAT32_ERROR
        if has_convolutions and self.device == "mps":
            self.least_limit = self.fixed_limit  # Metal's Winograd convolutions are wrong by up to 5.7 % each

    def _probe_once(self, context, name):
        key = type(context), self.device, self.precision, context.weight_bits, name
        if key not in _probed:
            left, right, exact = probe_inputs(name)
            scale = 1 if self.precision in ("float16", "mixed_float16") else np.float32(PROBE_SCALE)
            got, is_float16 = context.probe(name, left * scale, right * scale)
            reason = f"a {name} of large {self.precision} numbers overflows, as in float16"
            require(np.isfinite(got).all() and got.any(), reason)
            error = relative_error(got.astype(np.float64) / float(scale) ** 2, exact[: len(got)])
            _probed[key] = name_precision(error, is_float16)
        return _probed[key]

    def has_memory(self, parameters, gradients=0):
        """Return whether the free memory suffices for the reference of so many weights and gradients, or note it."""
        precision = self.reference_precision
        if precision == "float64" and parameters > MAX_DISTURBED:
            self.spread = 0
        if HOST_BYTES[precision] * (parameters + gradients) < resources.available_bytes():
            return True
        self.note = f"not compared with the CPU, which has too little memory for this model in {precision}"
        return False

    def compute_reference(self, evaluate, arrays):
        """Return {part: array} of the reference, and store R of each part.

        Args:
            evaluate: (spread) -> {part: array}; it disturbs the weights and inputs that are not in `arrays`.
            arrays: NumPy arrays that evaluate() reads; they stay disturbed.
        """
        expected = evaluate(0)
        if self.spread:
            disturb(arrays, self.spread)
            disturbed = evaluate(self.spread)
            with np.errstate(divide="ignore", invalid="ignore"):
                self.roundings = {part: relative_error(disturbed[part], right) for part, right in expected.items()}
        return expected

    def limit_of(self, part):
        """Return the limit of the error of a part; None if rounding is so large that it explains any error.

        ReLUs flip: no gradient but that of the last layer and of adapters is held to less than 30 %.
        """
        rounding = self.roundings.get(part, 0)
        if not rounding <= MAX_MODEL_ERROR / 2:  # or it is NaN
            return None
        least = self.least_limit if rounding else self.fixed_limit
        least = least if part.startswith((OUTPUT, LAST, ADAPTER)) else MAX_ROUGH_ERROR
        return min(MAX_MODEL_ERROR, max(least, ROUNDING_MULTIPLE * rounding))

    def exceeds_rounding(self, part, expected):
        """Return whether an expected part is more than rounding.

        A gradient is not if its R is that of unrelated numbers, above 1, or if it is tiny compared with the largest, as
        that of the queries and keys of a single token.
        """
        largest = max(np.linalg.norm(right) for right in expected.values())
        is_tiny = part != OUTPUT and np.linalg.norm(expected[part]) <= LEAST_GRADIENT * largest
        return self.roundings.get(part, 0) < 1 and not is_tiny

    def compare(self, got, expected, words):
        """Raise MeasurementError, in these words, unless each part is within its limit of what is expected.

        A part that rounding explains must not be all zero.
        """
        for part, right in expected.items():
            limit, computed = self.limit_of(part), got[part]
            if not self.exceeds_rounding(part, expected):
                continue
            if limit is None:
                require(np.any(computed), f"the {part} is all zero")
            elif is_whole(part):
                check_equal(computed, right, limit, f"the {part} {words}")
            else:
                ratio = np.linalg.norm(computed) / np.linalg.norm(right)
                require(abs(ratio - 1) <= limit, f"the {part} {words}: its norm is {ratio:.2g} times as large")

    def prove(self, got, expect, numbers=None):
        """Compare parts with the reference in the first process, and with its numbers in the others.

        Args:
            got: {part: array} from the device.
            expect: () -> what compute_reference() returns, or None if there is no memory for it.
            numbers: {part: array} that all processes must agree in, if it is not `got`.

        Returns:
            What was expected; None if nothing was compared.

        Raises:
            MeasurementError: `wrong_output`.
        """
        numbers = {part: numbers[part] for part in (OUTPUT, LAST, FIRST) if part in numbers} if numbers else got
        if not self.compares:
            self.compare_with_first_process(numbers)
            return None
        self.write_numbers({})  # it stays like this if the memory does not suffice and the system kills this process
        expected = expect()
        if expected:
            self.output_error = relative_error(got[OUTPUT], expected[OUTPUT])
            self.output_limit = self.limit_of(OUTPUT)
            self.note_unknown(expected)
            self.compare(got, expected, f"differs from the CPU's in {self.reference_precision}")
        self.write_numbers(numbers)
        return expected

    def note_unknown(self, expected):
        """Note which parts rounding explains whatever they are."""
        if unknown := [each for each in expected if each.startswith((OUTPUT, LAST)) and self.limit_of(each) is None]:
            why = f"because rounding alone changes it by {self.roundings[unknown[0]]:.0%}"
            self.note = f"not compared with the CPU: the {' and the '.join(unknown)}, {why}"

    def write_numbers(self, numbers):
        """Write some numbers of each part and their limit for the later processes of this run."""
        if self.path:
            chosen = {part: [self.limit_of(part), sample(array, STORED).tolist()] for part, array in numbers.items()}
            self.path.write_text(json.dumps(chosen))

    def compare_with_first_process(self, numbers):
        """Raise MeasurementError unless these parts have the numbers that the first process has checked.

        The limits are those of the first process. In training it cannot see what differs only after the first step, or
        only if it is compiled: the processes train for different numbers of steps, so the initial weights are compared.
        """
        stored = json.loads(self.path.read_text()) if self.path else {}
        if self.path and not stored:
            self.note = "not compared with the CPU: the process that did it was killed, probably for its memory"
        for part, (limit, expected) in stored.items():
            if limit is not None and np.isfinite(expected).all() and np.any(expected):
                computed = sample(numbers[part], STORED)
                check_equal(computed, np.array(expected), limit, f"the {part} differs from the first process's")


def is_whole(part):
    """Return whether a part is compared number by number."""
    return part.startswith((OUTPUT, LAST, FIRST, ADAPTER))


def sample(array, count):
    """Return about so many numbers of an array: each k-th, with an odd k, because rows are powers of 2 long."""
    flat = array.reshape(-1)
    return flat[:: max(1, flat.shape[0] // count) | 1]


def disturb(arrays, spread):
    """Multiply each float of NumPy arrays by 1 + u, in place; u is seeded and uniform from -spread to spread.

    The u repeat, because a billion take 8 seconds; their number is odd, so that rows of a matrix, whose lengths are
    powers of 2, get different ones.
    """
    factors = 1 - spread + 2 * spread * np.random.default_rng(0).random(2**20 - 1, np.float32)
    for array in arrays:
        if array.dtype.kind == "f":
            flat = array.reshape(-1)
            for part in (flat[start : start + factors.size] for start in range(0, flat.size, factors.size)):
                part *= factors[: part.size]
            array[...] = flat.reshape(array.shape)


# Before the first step of training


def evaluate_initial_weights(session):
    """Return {part: array} of a pair at the initial weights, in evaluation mode, uncompiled in PyTorch and MLX.

    Raises:
        MeasurementError: infinities or NaN, zeros, or two items with one output.
    """
    workload = session.workload
    pair = next(iter((workload.make_checked or workload.make_batches)(2, session.context.seed)))
    session.model.damp(DAMPING)
    parts = session.model.evaluate(session.context.put(*pair), [0, 1], is_compiled=False)
    session.model.damp(1 / DAMPING)
    refuse_useless_output(parts[OUTPUT])
    # In float16 a first layer's gradient may overflow.
    require(np.isfinite(parts[LAST]).all(), f"the {LAST} has infinities or NaN")
    require(np.any(parts[LAST]), f"the {LAST} is all zero")
    return parts


# After the first step


def refuse_useless_output(output):
    """Raise MeasurementError unless an output is finite, not all zero, and that of different items.

    It cannot see a wrong output: the comparison after the windows does.

    Args:
        output: its first axis is that of the items.
    """
    require(np.isfinite(output).all(), "the output has infinities or NaN")
    require(np.any(output), "the output is all zero")
    require(len(output) < 2 or not np.array_equal(output[0], output[-1]), "two different items give the same output")


def refuse_skipped_compilation(context):
    """Raise MeasurementError if the compiler was asked for and has compiled nothing."""
    if context.compile and context.trace_count() == 0:
        raise MeasurementError("unsupported", "the compiler skipped this model: it would run uncompiled")


# Before the windows

SINGLE_STEPS = 4  # in a try
COMPARED_STEPS = 16  # in the compared window, at least: skipping all but one gives a ratio of 16, far above 4
MAX_SINGLE_RATIO = 4.0
MAX_SKIPPED_RATIO = 1.5  # of work that must take as long; if every second step were skipped, it would be 2
KEPT_OUTPUTS = 8
SINGLE_TOLERANCE = 2e-5  # seconds: a single step has cold caches
LEAST_TRIES = 3  # one disturbed window must not decide
MOST_TRIES = 20


def refuse_skipped_steps(job: Job, steps):
    """Raise MeasurementError (`work_skipped`) if steps in a window take less time than steps that are all read.

    A lazy framework that evaluates only what is read would run one step of each window. The page
    docs/method-details.md derives the limits from in_window, all_read, single and idle. Other programs can only
    lengthen a step, so the shortest of each kind are compared, which were measured alternately. It cannot see skipped
    steps that are shorter than the allowance, fewer than a third of the steps waiting to be read, and a framework
    that computes the last step anew at every read.

    Args:
        steps: in a window. With one step to a window nothing can be skipped, and nothing is compared.
    """
    if steps == 1:
        return
    session = job.session
    clock = job.clock
    compared = max(steps, COMPARED_STEPS)
    in_window = single = all_read = math.inf
    keeps_outputs = session.can_keep_outputs()
    for tries in range(1, MOST_TRIES + 1):
        in_window = min(in_window, timed(session, clock, compared) / compared)
        if keeps_outputs:  # before the single steps, between which a GPU may lower its clock
            start = clock()
            outputs = []
            for _ in range(KEPT_OUTPUTS):
                session.step()
                outputs.append(session.keep_output())
            session.synchronize()
            for output in outputs:
                session.read(output)
            all_read = min(all_read, (clock() - start) / KEPT_OUTPUTS)
        idle = idle_barrier_seconds(job)
        single = min(single, *(timed(session, clock, 1) for _ in range(SINGLE_STEPS)))
        allowed = SINGLE_TOLERANCE + 2 * idle
        reads_agree = not keeps_outputs or all_read <= MAX_SKIPPED_RATIO * in_window + allowed
        if tries >= LEAST_TRIES and reads_agree and single <= MAX_SINGLE_RATIO * in_window + allowed:
            return
    reason = f"a step in a window of {compared} takes {in_window * 1e3:.3g} ms, but {single * 1e3:.3g} ms by itself"
    if keeps_outputs:
        reason += f" and {all_read * 1e3:.3g} ms if all outputs are read"
    raise MeasurementError("work_skipped", f"{reason}: steps of a window do not run")


# Every step of the windows

MAX_SYSTEM_SHARE = 0.05  # of the CPU time, that the system takes to hand out pages of memory
MANY_FAULTS = 256  # pages in a step, 1 MB


def start_counters(job: Job):
    """Start the watch; return what check_counters() compares with: counts, checksums, rusage."""
    session = job.session
    if job.watch:
        job.watch.start()
    used = resource.getrusage(resource.RUSAGE_SELF)
    return session.trace_count(), session.updates(), session.checksum(), session.marks(), used


def check_counters(job: Job, before, done, stop_reason):
    """Return (flags, sensor readings) after `done` steps; `before` is from start_counters().

    It cannot see updates whose gradients are old or of too few layers: refuse_wrong_gradients() does.

    Raises:
        MeasurementError: `work_skipped` if the optimizer's step count differs from ours, if few weights have moved, or
            if what only training changes has not: the statistics of BatchNorm, the random numbers of dropout.
    """
    session = job.session
    traces, updates, weights, marks, used = before
    now = resource.getrusage(resource.RUSAGE_SELF)
    flags, readings = job.watch.stop() if job.watch else ([], {})
    user, system, faults = (getattr(now, name) - getattr(used, name) for name in ("ru_utime", "ru_stime", "ru_minflt"))
    if faults > MANY_FAULTS * done and system > MAX_SYSTEM_SHARE * (user + system):
        flags.append("page_faults")
    if stop_reason != "interrupted":  # Ctrl-C leaves no result to read
        if not math.isfinite(session.read()):
            flags.append("not_finite")
        elif weights:
            moved = sum(map(operator.ne, weights, session.checksum()))
            if moved < len(weights) / 2:
                raise MeasurementError("work_skipped", f"the timed steps moved {moved} of {len(weights)} weights")
        if updates is not None and (counted := session.updates() - updates) != done:
            raise MeasurementError("work_skipped", f"the optimizer counted {counted} of {done} timed steps")
        if still := [name for name, mark in session.marks().items() if mark == marks[name]]:
            raise MeasurementError("work_skipped", f"the timed steps left the {still[0]} as in inference")
    if session.trace_count() != traces:
        flags.append("recompiled")
    return flags, readings


# After the windows


def refuse_stale_output(timed_output, fresh, limit):
    """Raise MeasurementError unless the output of the last timed step equals a fresh computation of that step.

    Outputs with infinities or NaN pass: the row is flagged `not_finite`.
    """
    if np.isfinite(timed_output).all():
        check_equal(
            fresh, timed_output, limit, "the last timed output differs from a fresh computation of the same step"
        )


def refuse_changed_weights(session):
    """Raise MeasurementError if inference has other weights than before its first step.

    The reference is built from the changed ones. It cannot see changes that leave the last rows of each weight as
    they were.
    """
    require(session.sum_weights() == session.initial, "inference has changed the weights of the model")


def choose_items(session, count):
    """Return (one item of the first half, one of the second) of a batch of this size; twice the only one."""
    first, second = (np.random.default_rng(session.context.seed).integers(2**30, size=2)).tolist()
    half = count // 2
    return first % max(1, half), half + second % (count - half)


def choose_places(session, count):
    """Return (batch, place) of two items in the batches of draw_batches(): of the first half of the first batch, and of
    the second half of the second one.

    They are the same item only in batches of two.
    """
    first, second = choose_items(session, count)
    half = count // 2
    if (others := count - half - 1) > 0:  # places of the second half with another item than the first
        second = half + (first + 1 + second % others) % (others + 1)
    return (0, first), (1, second)


def draw_batches(session):
    """Return two batches of the timed size in NumPy that no step has used, whose items differ.

    The second one is the first one with its halves exchanged; a single item is followed by another one. CIFAR-10 has
    only 50,000 images, so that a new batch of it is a new choice.
    """
    workload, seed = session.workload, (session.context.seed, PROOF_SEED)
    batches = iter(workload.make_batches(session.batch_size, seed))
    first = next(batches)
    half = session.batch_size // 2
    return first, tuple(np.roll(each, half, 0) for each in first) if half else next(batches)


def refuse_unequal_places(session, first, second):
    """Raise MeasurementError unless items have one output at both of their places in the batches of draw_batches().

    The limit is that of the comparison with the reference, because kernels round differently at the end of a batch.
    """
    limit, half = session.proof.limit_of(OUTPUT), session.batch_size // 2
    if half and limit is not None:
        words = "the same items at other places of a batch give outputs that differ"
        check_equal(second, np.roll(first, half, 0), limit, words)


def exceeds_reference(session, steps=1):
    """Return whether two items of the timed size take too many FLOPs for the reference, or if that is unknown.

    Args:
        steps: of one token that make up an item, in decode.
    """
    workload = session.workload
    flops = 2 * steps * (workload.flops_per_item or math.inf) * workload.items_per_step / session.batch_size
    return flops > MAX_REFERENCE_FLOPS


def refuse_equal_halves(output):
    """Raise MeasurementError if the halves of an output are equal: one half was computed, and given twice."""
    half = len(output) // 2
    require(
        not half or not np.array_equal(output[:half], output[-half:]), "both halves of a batch give the same output"
    )


def refuse_wrong_output(session):
    """Raise MeasurementError unless steps of inference on new batches have the outputs of the reference.

    Two batches follow each other, so that an old output, or old features of one, cannot be those of both. Items that
    are too large for the reference are compared in a smaller size, uncompiled; then eight steps in a random order
    prove that the timed size gives equal outputs for equal batches. Without a reference, a compiled model is compared
    with the uncompiled one. It cannot see outputs that are right for these items, and wrong for others of the same
    batches; nor, of large items, an error of the timed size that all steps and the uncompiled model share.
    """
    proof, model, workload = session.proof, session.model, session.workload
    batches = draw_batches(session)
    places = choose_places(session, session.batch_size)
    is_large = bool(workload.make_checked) and exceeds_reference(session)
    order = [0, 1]
    if is_large:
        order += (np.random.default_rng(session.context.seed).permutation(LARGE_STEPS - 2) % 2).tolist()
    refuse_changed_weights(session)
    model.damp(DAMPING)
    outputs = session.run_steps(session.put(batches[number] for number in order))
    for number, output in zip(order, outputs, strict=True):
        refuse_equal_halves(output)
        check_equal(output, outputs[number], proof.fixed_limit / 10, "equal batches give outputs that differ")
    session.free()

    def pick(of_batches):
        return np.stack([of_batches[number][place] for number, place in places])

    def compute_plain(*batches):
        on_device = (session.context.put(*batch) for batch in batches)
        return [session.context.as_array(model.infer_uncompiled(*workload.inputs_of(each))) for each in on_device]

    rows = got = pick(outputs)
    pair = tuple(map(pick, zip(*batches, strict=True)))
    if is_large and proof.compares:
        pair = workload.make_checked(2, session.context.seed)[0]
        (got,) = compute_plain(pair)
    expected = proof.prove({OUTPUT: got}, functools.partial(expect_model, session, pair), {OUTPUT: rows})
    if expected:
        refuse_unequal_places(session, *outputs[:2])
    if (not expected or is_large) and session.context.compile and proof.compares:
        proof.compare({OUTPUT: rows}, {OUTPUT: pick(compute_plain(*batches))}, "differs if it is compiled")
    model.damp(1 / DAMPING)


def expect_model(session, pair):
    """Return {part: array} of the reference for two items in NumPy; None if the memory does not suffice."""
    proof, model = session.proof, session.model
    if not proof.reference_precision:
        proof.note = "not compared with the CPU, where this framework has no convolutions in float64"
        return None
    if not proof.has_memory(model.size, model.is_trained * model.parameters):
        return None
    return proof.compute_reference(*model.build_reference(pair, proof.reference_precision))


def refuse_wrong_gradients(session):
    """Raise MeasurementError unless training has the output and gradients of the reference, at the weights it has now.

    A batch of the timed size is evaluated, of which two items make up the loss, in evaluation mode, because dropout
    would make two passes differ. Every weight for which the reference has a gradient above rounding has one, of the
    right norm, and had one in the last timed step, or in one of twenty more: stochastic depth leaves blocks out.
    Results that are not finite, as in float16, are not compared. It cannot see a wrong gradient of an inner layer
    with the right norm, and, in JAX, TensorFlow and MLX, whose step is one function, gradients that it does not apply.
    """
    proof, model, workload = session.proof, session.model, session.workload
    if not proof.compares and not ranks.read_ranks().are_many:
        proof.compare_with_first_process(session.initial)
        return
    if workload.make_checked and exceeds_reference(session):
        batch, items = workload.make_checked(2, session.context.seed)[0], [0, 1]
    else:
        batch, _ = draw_batches(session)
        items = sorted(set(choose_items(session, session.batch_size)))
    # Every rank trains and evaluates: a model of several ranks computes only on all of them.
    if missing := model.parts_without_gradient():
        known = next(session.put(workload.make_batches(session.batch_size, session.context.seed)))
        for _ in range(MOST_TRIES):
            if missing:
                model.train(*known)
                missing &= model.parts_without_gradient()
    session.free()  # an evaluation keeps more than a step does
    model.damp(DAMPING)
    got = model.evaluate(session.context.put(*batch), items)
    if all(np.isfinite(array).all() for array in got.values()):
        pair = tuple(each[items] for each in batch)
        expected = proof.prove(got, functools.partial(expect_model, session, pair), session.initial)
        lost = [part for part in missing if expected and proof.exceeds_rounding(part, expected)]
        require(not lost, f"the timed steps have no {'; no '.join(lost[:2])}")
    else:
        proof.note = "not compared with the CPU: the numbers are not finite after training"
    model.damp(1 / DAMPING)


def refuse_wrong_logits(session):
    """Raise MeasurementError unless prefill and decode of new tokens give the logits of the reference for all of them.

    Prefill: the last logits of two new batches are compared. Decode: the first, the middle and the last ones of a round
    of new tokens. The reference reads whole sequences, without a cache. If they are too long for it, it reads a few
    tokens, uncompiled. A mixture of experts is not compared. It cannot see, in decode, other steps than those before
    the three places.
    """
    proof = session.proof
    refuse_changed_weights(session)
    batches = [ids for (ids,) in draw_batches(session)]
    count, tokens = batches[0].shape
    items = sorted(set(choose_items(session, count)))
    picked = [(0, item) for item in items] if session.is_decode else choose_places(session, count)
    pieces = [session.run_new(ids) for ids in batches[: picked[-1][0] + 1]]
    for output in itertools.chain.from_iterable(pieces):
        refuse_useless_output(output)
        refuse_equal_halves(output)
    if session.workload.sizes.num_experts > 1:
        proof.note = "not compared with the CPU: rounding may change which experts a router chooses"
        return
    rows = np.stack([[output[item] for output in pieces[number]] for number, item in picked])
    ids = np.stack([batches[number][item] for number, item in picked])
    got, places = rows, session.kept_places
    if proof.compares:
        fits_memory = proof.has_memory(session.parameters)
        is_long = exceeds_reference(session, tokens if session.is_decode else 1)
        if is_long:
            words = f"compared with the CPU, which is too slow for more: {CHECKED_TOKENS} tokens, uncompiled"
            proof.note = proof.note or words
            ids = ids[:, :CHECKED_TOKENS]
            got = session.read_at_once(ids)
            places = list(range(ids.shape[1]))
    session.free()

    def expect():
        if not fits_memory:
            return None
        return proof.compute_reference(*session.model.build_reference(ids, places, proof.reference_precision))

    if proof.prove({OUTPUT: got}, expect, {OUTPUT: rows}) and not session.is_decode:
        refuse_unequal_places(session, *(outputs[0] for outputs in pieces))


# Operators


def check_samples(got, expected, measured_precision):
    """Raise MeasurementError unless an operator's output agrees with float64 at the sampled places.

    Sums are long, and in 16 bits they may be rounded, too: the limit is ten times the error of rounding the operands.
    In float32 and TF32 it is twice that error, or TF32 would pass as float32. Integers must be equal.
    """
    if expected.dtype.kind == "i":
        require(np.array_equal(got, expected), "the output differs from the exact product")
        return
    # "float32", or "matmul float32, convolution tf32"
    names = [part.split()[-1] for part in measured_precision.split(", ")]
    limits = [(2 if name in ("float32", "tf32") else 10) * ERROR_LIMITS.get(name, 1) for name in names]
    limit = min(MAX_ROUGH_ERROR, max(limits))
    error = relative_error(got, expected)
    require(error < limit, f"the output differs from float64's by {error:.1e} (relative L2), limit {limit:.1e}")
