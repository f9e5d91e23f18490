"""Check that the work is right before it is timed, with the same NumPy code for every framework."""

import math

import numpy as np

from bench.timing.measure import MeasurementError

# Another order of float32 sums changes a deep model's output by about 1e-5; a wrong kernel changes it by about 1.
MAX_RELATIVE_ERROR = 1e-3
MAX_TRAINING_ERROR = 0.1
# With significands shorter than float32's: a wrong kernel is wrong by about 1, rounding by 0.01 to 0.2.
MAX_ROUGH_ERROR = 0.3
MAX_CACHE_ERROR = 0.08  # in lower precisions
SMALL_GRADIENT = 0.01  # of the norm of all gradients
FIRST_LOSS_ERRORS = 5  # standard errors; one training in two million would be further away by chance
LAST_LAYER = 2  # tensors: its weights and biases
FLOAT32_SPREAD = 100  # a device's error over a CPU's: a Winograd convolution is wrong by 1e-5 instead of 1e-7

# Upper limits of a matmul's relative L2 error, by the significand that its inputs are rounded to (53, 24, 11 and 8
# bits), halfway between formats in powers of ten. Winograd convolutions in float32 have errors of up to 1e-5.
PRECISION_BY_ERROR = ((1e-11, "float64"), (5e-5, "float32"), (1e-3, "tf32"), (1e-2, "bfloat16"))
# Float16 outputs with the errors of TF32 and bfloat16: sums in float32, or in float16 too.
FLOAT16_NAMES = {"tf32": "float16", "bfloat16": "float16-accumulate"}
ERROR_LIMITS = {name: limit for limit, name in PRECISION_BY_ERROR}
ERROR_LIMITS |= {name: ERROR_LIMITS[like] for like, name in FLOAT16_NAMES.items()}
ERROR_LIMITS |= {"int8": 2e-3, "float8_e4m3": 2e-3}  # exact operands, outputs rounded to bfloat16
SIGNIFICANDS = {"float64": 53, "float32": 24, "tf32": 11, "float16": 11, "bfloat16": 8, "float16-accumulate": 8}  # bits
LOWER_SIGNIFICAND = 4


def relative_error(got, expected):
    """Return the L2 norm of the difference, divided by the L2 norm of the expected values."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def check_parameters(counted, expected):
    """Raise MeasurementError unless the model has this many trainable parameters; None means unknown."""
    if expected is not None and counted != expected:
        raise MeasurementError("wrong_model", f"the model has {counted} trainable parameters, not {expected}")


def require(is_right, reason):
    if not is_right:
        raise MeasurementError("wrong_output", reason)


def output_limit(measured_precision, rounding):
    """Return the largest relative L2 error of a model's output that rounding explains.

    Args:
        measured_precision: what the device really computes in, as name_precision() names it.
        rounding: the error of this model in float32 on the CPU against float64: about 1e-6 for most models, more than
            1e-4 for deep ones that shrink their feature maps to single pixels.
    """
    bits = lost_bits(measured_precision)
    return max(MAX_ROUGH_ERROR, 2**bits * rounding) if bits else max(MAX_RELATIVE_ERROR, 10 * rounding)


def lost_bits(measured_precision):
    """Return how many significand bits a measured precision lacks, compared with float32."""
    shortest = min(SIGNIFICANDS.get(name, LOWER_SIGNIFICAND) for name in names_in(measured_precision))
    return max(0, SIGNIFICANDS["float32"] - shortest)


def check_output(got, expected, limit):
    """Raise MeasurementError when a model's output for two different items is wrong.

    Args:
        got: output of the measured device, shape (2, classes).
        expected: the same in float64 on the CPU; None if the device is the CPU in float32 or float64: then only
            infinities and NaN are detected.
        limit: from output_limit().
    """
    got = np.asarray(got, np.float64)
    require(np.isfinite(got).all(), "the model's output has infinities or NaN")
    if expected is None:
        return
    require(np.any(expected), "the model's output is all zero")
    error, items = relative_error(got, expected), relative_error(expected[0], expected[1])
    require(error <= limit, f"the output differs from the CPU's by {error:.1e} (relative L2), limit {limit:.1e}")
    if limit < MAX_ROUGH_ERROR:  # a device that ignores its input would pass otherwise
        said = f"the outputs of two items differ by only {items:.1e}, those of device and CPU by {error:.1e}"
        require(items >= 10 * error, said)


def check_equal(got, expected, limit, words):
    """Raise MeasurementError, in these words, unless outputs that must be equal agree.

    Libraries may sum in a different order the second time, so a tenth of the limit for rounding is allowed.
    """
    error = relative_error(got, expected)
    require(error <= min(limit, MAX_ROUGH_ERROR) / 10, f"{words} by {error:.1e}")


def check_last_output(timed, fresh, limit):
    """Raise MeasurementError unless the output of the last timed step equals a fresh computation of that step.

    Outputs with infinities or NaN pass: the row is flagged `not_finite`.
    """
    if np.isfinite(timed).all():
        check_equal(fresh, timed, limit, "the last timed output differs from a fresh computation of the same step")


def gradient_errors(got, expected):
    """Return the relative L2 error of each weight's gradient.

    Some gradients, such as those of the key biases in attention, are zero except for rounding. The error of a small
    gradient is therefore divided by SMALL_GRADIENT of the norm of all gradients instead of its own norm.

    Args:
        got, expected: arrays, one for each weight, in the same order.
    """
    norms = [float(np.linalg.norm(each)) for each in expected]
    smallest = SMALL_GRADIENT * math.hypot(*norms)
    errors = [np.linalg.norm(np.asarray(a, np.float64) - b) for a, b in zip(got, expected, strict=True)]
    return [float(error) / max(norm, smallest) for error, norm in zip(errors, norms, strict=True)]


def check_gradients(got, expected, rounding, measured_precision):
    """Raise MeasurementError unless the gradients of a pair of items agree with float64's.

    Only the last layer's weights and biases have a strict limit. In earlier layers, rounding flips ReLUs: a single one
    whose input is close to zero changes a gradient by up to 4 %. In the first layers of ResNet-50, many of them make
    gradients wrong by 2 % in float32 and by 140 % in 16 bits. The other weights are therefore compared with a wide
    limit in float32 and float64, and not at all with shorter significands.

    Args:
        got: of the measured device, an array for each weight, the last layer's at the end.
        expected: the same in float64 on the CPU.
        rounding: gradient_errors() of float32 on the CPU.
    """
    bits = lost_bits(measured_precision)
    times = 10 * 2**bits if bits else FLOAT32_SPREAD
    last = len(expected) - LAST_LAYER
    for place, (error, own) in enumerate(zip(gradient_errors(got, expected), rounding, strict=True)):
        if bits and place < last:
            continue
        require(own <= MAX_ROUGH_ERROR, f"a gradient in float32 on the CPU differs from float64's by {own:.1e}")
        limit = max(MAX_ROUGH_ERROR if bits or place < last else MAX_RELATIVE_ERROR, times * own)
        require(error <= limit, f"a gradient differs from float64's by {error:.1e} (relative L2), limit {limit:.1e}")


def check_first_loss(loss, logits):
    """Raise MeasurementError unless a loss is the mean cross-entropy of random targets, whatever the weights are.

    It is then the mean of log(sum(exp(logits))) - mean(logits), about ln(vocabulary) plus half of the logits' variance.

    Args:
        logits: of shape (..., vocabulary).
    """
    logits = np.asarray(logits, np.float64)
    top = logits.max(-1)
    expected = float(np.mean(top + np.log(np.exp(logits - top[..., None]).sum(-1)) - logits.mean(-1)))
    error = FIRST_LOSS_ERRORS * math.sqrt(logits.var(-1).mean() / top.size)  # of a mean over tokens
    said = f"the first loss is {loss:.4g}; random weights and targets give {expected:.4g} +- {error:.2g}"
    require(abs(loss - expected) <= error, said)


def check_compiled(got, expected, again=None):
    """Raise MeasurementError unless a compiled model's output equals the uncompiled model's.

    For float32 and float64 only: rounding order alone can change the 16-bit output of a deep model by 10 %.

    Args:
        again: in training, the uncompiled model's output computed once more. If it differs from `expected`, the model
            has random layers, and nothing is checked. BatchNorm in training amplifies rounding (2e-3 in ResNet-152).
    """
    limit = MAX_RELATIVE_ERROR if again is None else MAX_TRAINING_ERROR
    if again is not None and relative_error(again, expected) > limit / 10:
        return
    error = relative_error(got, expected)
    require(error < limit, f"compiled, the output differs by {error:.1e} (relative L2)")


def check_cache(got, expected, precision):
    """Raise MeasurementError unless tokens read one by one give the logits of all of them at once.

    Errors of smollm2-135m in 16 bits: 0.02 by rounding, 0.13 by positions that are off by one, 1.4 without a cache.
    """
    limit = MAX_RELATIVE_ERROR if precision in ("float32", "float64") else MAX_CACHE_ERROR
    error = relative_error(got, expected)
    require(error <= limit, f"logits of single tokens through the cache differ by {error:.1e} (relative L2)")


def check_samples(got, expected, measured_precision):
    """Raise MeasurementError unless an operator's output agrees with float64 at the sampled places.

    The limit is ten times the error of rounding the operands, because the sums are long. Integers must be equal, and
    the output of zeros must be zero.
    """
    if expected.dtype.kind == "i" or not expected.any():
        require(np.array_equal(got, expected), "the output differs from the exact product")
        return
    limit = 10 * max(ERROR_LIMITS.get(name, 1) for name in names_in(measured_precision))
    error = relative_error(got, expected)
    require(error < limit, f"the output differs from float64's by {error:.1e} (relative L2)")


def probe_inputs():
    """Return seeded normal inputs of the matmul and the convolution that show the precision.

    Returns:
        ((a, b), (x, w)): float32 of shapes (1024, 1024) twice, (4, 128, 32, 32) and (128, 128, 3, 3). Libraries do not
        use tensor cores for much smaller inputs.
    """
    random = np.random.default_rng(0)
    shapes = (1024, 1024), (1024, 1024), (4, 128, 32, 32), (128, 128, 3, 3)
    a, b, x, w = (random.standard_normal(shape, dtype=np.float32) for shape in shapes)
    return (a, b), (x, w)


def name_precision(matmul_error, convolution_error, is_float16=False):
    """Return the precision that the hardware computed in, from the two probes' relative errors against float64.

    The significands of TF32 and float16 are equally long, so is_float16 tells whether the outputs were float16.
    """

    def name(error):
        precision = next((name for limit, name in PRECISION_BY_ERROR if error < limit), "lower")
        return FLOAT16_NAMES.get(precision, precision) if is_float16 else precision

    matmul, convolution = name(matmul_error), name(convolution_error)
    return matmul if matmul == convolution else f"matmul {matmul}, convolution {convolution}"


def names_in(measured_precision):
    """Return the precisions in what name_precision() returned, of the matmul and of the convolution."""
    return [part.split()[-1] for part in measured_precision.split(", ")]
