"""Check that the work is right, before and after it is timed, with the same NumPy code for every framework."""

import numpy as np

from bench.timing import MeasurementError
from bench.workloads.operators import EIGHT_BITS

# Limits of relative L2 errors that do not depend on the network, in float32 and in less. A wrong kernel is wrong by
# about 1. Another order of float32 sums changes a deep model by 1e-5 to 1e-3.
MAX_RELATIVE_ERROR = 0.01
MAX_ROUGH_ERROR = 0.3
# The limit of a model's error in 16 bits or TF32 is a multiple of its error when each weight and input is
# disturbed by up to SPREADS, relative to it; at most MAX_MODEL_ERROR. docs/method-details.md has the measurements.
MAX_MODEL_ERROR = 0.9
ROUNDING_MULTIPLE = 4
SPREADS = {"tf32": 2**-11, "float16": 2**-11, "bfloat16": 2**-8, "float16-accumulate": 2**-8}
MAX_CACHE_ERROR = 0.08  # smollm2-135m in 16 bits: rounding 0.02, positions off by one 0.13, no cache 1.4
MAX_RESTORED_STEPS = 2  # torchao 0.6, MLX 1.0; 1.5 in 8 bits whose scales are bfloat16
# For a compiled model in training: BatchNorm amplifies rounding, to 2e-3 in ResNet-152.
MAX_TRAINING_ERROR = 0.1

# Upper limits of a matmul's relative L2 error, by the significand that its inputs are rounded to (53, 24, 11 and 8
# bits), halfway between formats in powers of ten. Winograd convolutions in float32 have errors of up to 1e-5.
PRECISION_BY_ERROR = ((1e-11, "float64"), (5e-5, "float32"), (1e-3, "tf32"), (1e-2, "bfloat16"))
# Float16 outputs with the errors of TF32 and bfloat16: sums in float32, or in float16 too.
FLOAT16_NAMES = {"tf32": "float16", "bfloat16": "float16-accumulate"}
ERROR_LIMITS = {name: limit for limit, name in PRECISION_BY_ERROR}
ERROR_LIMITS |= {name: ERROR_LIMITS[like] for like, name in FLOAT16_NAMES.items()}
ERROR_LIMITS |= dict.fromkeys(EIGHT_BITS, 2e-3)  # exact operands, outputs rounded to bfloat16


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


def is_exact(measured_precision):
    """Return whether everything is computed in float32 or float64."""
    return set(names_in(measured_precision)) <= {"float32", "float64"}


def disturb(arrays, spread, operator=np.multiply):
    """Multiply each float of NumPy arrays by 1 + u, in place; u is seeded and uniform from -spread to spread.

    np.divide as the operator restores them up to float32's last bit.
    """
    random = np.random.default_rng(0)
    for array in arrays:
        if array.dtype.kind == "f":
            operator(array, 1 - spread + 2 * spread * random.random(array.shape, np.float32), out=array)


def limit_by_rounding(rounding, least):
    """Return the limit of a result's error, given `rounding`, the error of the disturbed model.

    None if that is so large that it would explain any error; `least` is the smallest limit.
    """
    return None if rounding > MAX_MODEL_ERROR / 2 else min(MAX_MODEL_ERROR, max(least, ROUNDING_MULTIPLE * rounding))


def check_equal(got, expected, limit, words):
    """Raise MeasurementError, in these words, unless outputs that must be equal agree up to this relative error.

    Libraries may sum in a different order the second time: most callers allow a tenth of the limit for rounding.
    """
    if not np.array_equal(got, expected):  # equal zeros have no relative error
        error = relative_error(got, expected)
        require(error <= limit, f"{words} by {error:.1e} (relative L2)")


def check_last_output(timed, fresh, limit):
    """Raise MeasurementError unless the output of the last timed step equals a fresh computation of that step.

    Outputs with infinities or NaN pass: the row is flagged `not_finite`.
    """
    if np.isfinite(timed).all():
        check_equal(fresh, timed, limit, "the last timed output differs from a fresh computation of the same step")


def check_compiled(got, expected, again=None):
    """Raise MeasurementError unless a compiled model's output equals the uncompiled model's, in float32 and float64.

    In training `again` is the uncompiled model's output computed once more. If it differs from `expected`, the model
    has random layers, and nothing is checked.
    """
    if again is not None and relative_error(again, expected) > MAX_TRAINING_ERROR / 10:
        return
    limit = MAX_RELATIVE_ERROR / 10 if again is None else MAX_TRAINING_ERROR
    check_equal(got, expected, limit, "compiled, the output differs")


def check_cache(got, expected, measured_precision):
    """Raise MeasurementError unless tokens read one by one give the logits of all of them at once."""
    limit = MAX_RELATIVE_ERROR / 10 if is_exact(measured_precision) else MAX_CACHE_ERROR
    check_equal(got, expected, limit, "logits of single tokens through the cache differ")


def check_restored(steps, name):
    """Raise MeasurementError unless the restored weights of a matrix are within `steps` steps of its scales."""
    reason = f"quantised, the weights of {name} are wrong by up to {steps:.3g} steps of their scales"
    require(steps <= MAX_RESTORED_STEPS, reason)


def check_samples(got, expected, measured_precision):
    """Raise MeasurementError unless an operator's output agrees with float64 at the sampled places.

    The limit is ten times the error of rounding the operands, because the sums are long. Integers must be equal.
    """
    if expected.dtype.kind == "i":
        require(np.array_equal(got, expected), "the output differs from the exact product")
        return
    limit = min(MAX_ROUGH_ERROR, 10 * max(ERROR_LIMITS.get(name, 1) for name in names_in(measured_precision)))
    error = relative_error(got, expected)
    require(error < limit, f"the output differs from float64's by {error:.1e} (relative L2)")


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


def names_in(measured_precision):
    """Return the precisions in a measured precision: "float32", or "matmul float32, convolution tf32"."""
    return [part.split()[-1] for part in measured_precision.split(", ")]
