"""Check that the work is right, before and after it is timed, with the same NumPy code for every framework."""

import itertools
import math
import os
from collections.abc import Callable

import numpy as np

from bench.host import resources
from bench.timing import MeasurementError
from bench.workloads.operators import EIGHT_BITS

# Limits of relative L2 errors that do not depend on the network: in less than float32, in float32, and in float32 on a
# CPU that is compared with float64. A wrong kernel is wrong by about 1. Another order of float32 sums changes a deep
# model by 1e-5 to 1e-3; a ResNet-50 on an H200 differs from the CPU by 5e-7.
MAX_ROUGH_ERROR = 0.3
MAX_RELATIVE_ERROR = 0.01
MAX_CPU_ERROR = 1e-3
LEAST_FLOAT32_ERROR = 1e-4  # of a limit that follows from R
# The limit of a model's error is ROUNDING_MULTIPLE times R, at most MAX_MODEL_ERROR. R is the error
# of the reference itself if each weight and input is multiplied by 1 - SPREADS to 1 + SPREADS, for
# float32 the error of a Winograd convolution. docs/method-details.md has the measurements.
MAX_MODEL_ERROR = 0.9
ROUNDING_MULTIPLE = 4
SPREADS = {"float32": 2**-17, "tf32": 2**-11, "float16": 2**-11, "bfloat16": 2**-8, "float16-accumulate": 2**-8}
DAMPING = 0.5  # of residual blocks, which otherwise amplify rounding until it explains a block that is left out
MAX_DISTURBED = 2**26  # weights in float64: for more it would take too much of a process's time
MAX_RESTORED_STEPS = 2  # torchao 0.6, MLX 1.0; 1.5 in 8 bits whose scales are bfloat16
# For each parameter on the CPU: 4 for the reference, and 2 for a copy in 16 bits; 8, and 4.
HOST_BYTES = {"float32": 6, "float64": 12}
# The factor of a probe's inputs: they and their sums overflow in float16, but not with float32's exponents.
PROBE_SCALE = 2.0**16
# What is compared, in order: an inference has only the first, a large model has no third; LoRA's adapters follow.
CHECKED = ("output", "gradient of the last layer", "gradient of the first layer")

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


class ModelCheck:
    """The half of a DeviceContext that checks a model, the same in every framework.

    The reference is another path of computation on the CPU: float64 for float32 there, otherwise float32. R is how much
    rounding of its weights and inputs changes it. Residual blocks are damped meanwhile. The order of the check:

        measure_precision -> references: R -> check_model: within 4 R of them -> first step -> compare: compiled as well
    """

    probe: Callable  # of the framework's DeviceContext, see base.py
    has_float64 = True  # whether the framework computes in float64 on a CPU, next to other precisions
    measured_precision: str | None = None  # as name_precision() names it; None without a model or operator
    fixed_limit: float  # of an error if R is unknown; a repetition may differ by a tenth of it
    least_limit: float  # of an error if R is known
    spread: float  # by which references() disturbs weights and inputs; 0: not at all
    output_error: float | None = None  # the output's for a pair of items, against the reference
    output_limit: float | None = None  # the limit for that error in this model
    note = ""  # what a reader of its rows has to know

    def __init__(self, device, settings, compares=True):
        """Store the settings. compares: whether models are compared with the reference."""
        self.device = device
        self.precision = settings.precision
        self.seed = settings.seed
        self.weight_bits = settings.weight_bits
        self.compares = compares
        is_double = self.has_float64 and (device, settings.precision) == ("cpu", "float32")
        self.reference = "float64" if is_double else "float32"
        self.roundings = {}  # R of each part

    def measure_precision(self, has_convolutions):
        """Set measured_precision, what this device really computes in, and what follows from it for the checks.

        Raises:
            MeasurementError: `wrong_output` for float16 under another name, `unsupported` for a TF32 that is missing
                and for float32 in fewer bits.
        """
        names = ["matmul", "convolution"] if has_convolutions else ["matmul"]
        if self.precision in EIGHT_BITS:  # compared with exact products instead
            precisions = {"matmul": self.precision}
        else:
            precisions = {name: self._probe_once(name) for name in names}
        self.measured_precision = precisions["matmul"]
        if len(set(precisions.values())) > 1:
            self.measured_precision = ", ".join(f"{name} {computed}" for name, computed in precisions.items())
        if self.precision == "tf32" and "tf32" not in self.measured_precision:
            raise MeasurementError("unsupported", f"this {self.device} has no TF32: it computes in float32")
        if self.precision == "float32" and not self.weight_bits:
            refuse_coarse_float32(self.device, precisions)
        # What follows for the checks. What Metal does in float32 is unknown: nobody has measured it.
        exact = {"float32", "float64"}.issuperset(precisions.values())
        is_rounded = "lower" not in precisions.values() and not (exact and self.device == "mps")
        self.spread = max(SPREADS.get(precision, 0) for precision in precisions.values()) if is_rounded else 0
        self.fixed_limit, self.least_limit = MAX_ROUGH_ERROR, MAX_RELATIVE_ERROR
        if exact:
            self.fixed_limit = MAX_CPU_ERROR if self.reference == "float64" else MAX_RELATIVE_ERROR
            self.least_limit = LEAST_FLOAT32_ERROR
        if has_convolutions and self.device == "mps":
            self.least_limit = self.fixed_limit  # Metal's Winograd convolutions are wrong by up to 5.7 % each

    def _probe_once(self, name):
        key = type(self), self.device, self.precision, self.weight_bits, name
        if key not in _probed:
            left, right, exact = probe_inputs(name)
            scale = 1 if self.precision in ("float16", "mixed_float16") else np.float32(PROBE_SCALE)
            got, is_float16 = self.probe(name, left * scale, right * scale)
            reason = f"a {name} of large {self.precision} numbers overflows, as in float16"
            require(np.isfinite(got).all() and got.any(), reason)
            error = relative_error(got.astype(np.float64) / float(scale) ** 2, exact[: len(got)])
            _probed[key] = name_precision(error, is_float16)
        return _probed[key]

    def batches_of_two(self, workload):
        """Return the batches of two items, as NumPy, with which a model is prepared and checked."""
        return (workload.make_checked or workload.make_batches)(2, self.seed)

    def checked_batch(self, workload):
        """Return the first of these batches, as NumPy, as the device gets it to be checked.

        A GPU's kernels depend on the number of items, so there the pair is repeated until it fills the timed batch.
        """
        pair = self.batches_of_two(workload)[0]
        # Items of make_checked() are smaller: repeated, they would not give the timed batch.
        is_repeated = self.device != "cpu" and not workload.make_checked
        times = math.ceil(workload.items_per_step / 2) if is_repeated else 1
        return tuple(np.concatenate([each] * times) for each in pair)

    def can_compare(self, parameters):
        """Return whether a model is compared with its reference; note it if memory is short."""
        has_memory = HOST_BYTES[self.reference] * parameters < resources.available_bytes()
        if self.compares and not has_memory:
            self.note = f"not compared with the CPU, which has too little memory for this model in {self.reference}"
        if self.reference == "float64" and parameters > MAX_DISTURBED:
            self.spread = 0
        return self.compares and has_memory

    def references(self, evaluate, arrays):
        """Return what evaluate(spread) computes for the reference, and the same disturbed as rounding does it.

        Weights and inputs in `arrays` are disturbed here, in place; evaluate(spread) disturbs those that are not in it.
        """
        expected = disturbed = evaluate(0)
        if self.spread:
            disturb(arrays, self.spread)
            disturbed = evaluate(self.spread)
            disturb(arrays, self.spread, np.divide)
        self.roundings = {part: relative_error(*both) for part, *both in name_parts(disturbed, expected)}
        return expected

    def limit_of(self, part):
        """Return the limit of the error of one of CHECKED; None if rounding is so large that it explains any error."""
        rounding = self.roundings.get(part, 0)
        least = self.least_limit if rounding else self.fixed_limit
        least = MAX_ROUGH_ERROR if part == CHECKED[2] else least
        limit = min(MAX_MODEL_ERROR, max(least, ROUNDING_MULTIPLE * rounding))
        return limit if rounding <= MAX_MODEL_ERROR / 2 else None

    def check_model(self, evaluate, expected):
        """Raise MeasurementError unless a model is right for pairs of items; stores the error of its output.

        Args:
            evaluate: () -> CHECKED as NumPy arrays from the device, for checked_batch(): uncompiled, without dropout,
                BatchNorm with its running statistics. The layers' gradients are those of the weights.
            expected: references() of the pair; None if nothing is compared.
        """
        got, again = evaluate(), evaluate()
        # In float16 a first layer's gradient may overflow, and deep models magnify another order of its sums.
        for part, first, second in zip(CHECKED[:2], got, again, strict=False):
            require(np.isfinite(first).all(), f"the {part} has infinities or NaN")
            require(np.any(first), f"the {part} is all zero")
            check_equal(second, first, self.fixed_limit / 10, f"equal inputs give a different {part}")
        require(not np.array_equal(*got[0][:2]), "two different items give the same output")
        if expected is None:
            return
        # The output has several pairs of items; a gradient is a mean, one for all of them.
        pairs = np.split(got[0], len(got[0]) // len(expected[0]))
        worst = max(pairs, key=lambda pair: relative_error(pair, expected[0]))
        self.output_error = relative_error(worst, expected[0])
        self.output_limit = self.limit_of(CHECKED[0])
        if unknown := [part for part in self.roundings if part != CHECKED[2] and self.limit_of(part) is None]:
            more = f" and {len(unknown) - 1} more" if unknown[1:] else ""
            why = f"because rounding alone changes it by {self.roundings[unknown[0]]:.0%}"
            self.note = f"not compared with the CPU: the {unknown[0]}{more}, {why}"
        self.compare([worst, *got[1:]], expected, f"differs from the CPU's in {self.reference}")

    def compare(self, got, expected, words="differs if it is compiled"):
        """Raise MeasurementError, in these words, unless each part is within its limit of what is expected, if any."""
        for part, computed, right in name_parts(got, expected):
            limit = self.limit_of(part)
            if limit is not None:
                check_equal(computed, right, limit, f"the {part} {words}")
            else:
                require(np.any(computed) or not np.any(right), f"the {part} is all zero")


def name_parts(*results):
    """Yield (name of a part, its array in each of these lists)."""
    adapters = map("gradient of adapter {}".format, itertools.count(1))
    return zip(itertools.chain(CHECKED, adapters), *results, strict=False)


def relative_error(got, expected):
    """Return the L2 norm of the difference, divided by the L2 norm of the expected values."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def require(is_right, reason):
    """Raise MeasurementError (`wrong_output`) with this reason unless a result is right."""
    if not is_right:
        raise MeasurementError("wrong_output", reason)


def check_parameters(counted, expected):
    """Raise MeasurementError unless the model has this many trainable parameters; None means unknown."""
    if expected is not None and counted != expected:
        raise MeasurementError("wrong_model", f"the model has {counted} trainable parameters, not {expected}")


def disturb(arrays, spread, operator=np.multiply):
    """Multiply each float of NumPy arrays by 1 + u, in place; u is seeded and uniform from -spread to spread.

    np.divide as the operator restores them up to float32's last bit. The u repeat, because a billion take 8 seconds;
    their number is odd, so that rows of a matrix, whose lengths are powers of 2, get different ones.
    """
    factors = 1 - spread + 2 * spread * np.random.default_rng(0).random(2**20 - 1, np.float32)
    for array in arrays:
        if array.dtype.kind == "f":
            flat = array.reshape(-1)
            for part in (flat[start : start + factors.size] for start in range(0, flat.size, factors.size)):
                operator(part, factors[: part.size], out=part)
            array[...] = flat.reshape(array.shape)


def check_equal(got, expected, limit, words):
    """Raise MeasurementError, in these words, unless outputs that must be equal agree up to this relative error.

    Libraries may sum in a different order the second time: most callers allow a tenth of the limit for rounding.
    """
    if not np.array_equal(got, expected):  # equal zeros have no relative error
        error = relative_error(got, expected)
        require(error <= limit, f"{words} by {error:.1e} (relative L2), limit {limit:.1e}")


def check_last_output(timed, fresh, limit):
    """Raise MeasurementError unless the output of the last timed step equals a fresh computation of that step.

    Outputs with infinities or NaN pass: the row is flagged `not_finite`.
    """
    if np.isfinite(timed).all():
        check_equal(fresh, timed, limit, "the last timed output differs from a fresh computation of the same step")


def check_restored(steps, name):
    """Raise MeasurementError unless the restored weights of a matrix are within `steps` steps of its scales."""
    reason = f"quantised, the weights of {name} are wrong by up to {steps:.3g} steps of their scales"
    require(steps <= MAX_RESTORED_STEPS, reason)


def check_choice(probabilities, chosen):
    """Return the experts that a router chose, integers; raises MeasurementError unless they are the most probable."""
    chosen = chosen.astype(int)
    most = np.sort(probabilities)[..., -chosen.shape[-1] :]
    is_right = np.array_equal(np.sort(np.take_along_axis(probabilities, chosen, -1)), most)
    require(is_right, "a router does not choose its most probable experts")
    return chosen


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
