"""Proves that the work is right before it is timed: the same NumPy checks for every framework."""

import numpy as np

from bench.timing.measure import MeasurementError

# float32 sums of a deep network in another order differ by about 1e-5; a wrong kernel by about 1.
MAX_RELATIVE_ERROR = 1e-3
MAX_TRAINING_ERROR = 0.1

# Relative L2 error of a product whose inputs were rounded to a format's significand (24, 11 and 8 bits),
# the limits halfway between formats in powers of ten. Winograd convolutions cost float32 up to 1e-5.
PRECISION_BY_ERROR = ((1e-11, "float64"), (5e-5, "float32"), (1e-3, "tf32"), (1e-2, "bfloat16"))


def relative_error(got, expected):
    """L2 norm of the difference over that of the expected values."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def check_parameters(counted, expected):
    """Raise MeasurementError unless the network has the workload's trainable parameters (None: unknown)."""
    if expected is not None and counted != expected:
        raise MeasurementError("wrong_model", f"the network has {counted} trainable parameters, not {expected}")


def check_output(got, expected=None):
    """Raise MeasurementError unless a network's output for two different items can be trusted.

    Args:
        got: outputs on the device that is measured, shape (2, classes).
        expected: the same in float32 on the CPU; None where the two are not comparable, in a lower
            precision or on the CPU itself: then finite values are all that is asked.
    """
    got = np.asarray(got, np.float64)
    if not np.isfinite(got).all():
        raise MeasurementError("wrong_output", "the network's output has infinities or NaN")
    if expected is None:
        return
    if not np.any(expected):
        raise MeasurementError("wrong_output", "the network's output is all zero")
    error = relative_error(got, expected)
    if error > MAX_RELATIVE_ERROR:
        raise MeasurementError("wrong_output", f"the output differs from the CPU's by {error:.1e} (relative L2)")
    apart = relative_error(expected[0], expected[1])
    # Otherwise a device that ignores its input would pass.
    if apart < 10 * error:
        raise MeasurementError("wrong_output", f"two items differ by {apart:.1e} only, the devices by {error:.1e}")


def check_compiled(got, expected, again=None):
    """Raise MeasurementError unless a compiled network's outputs are those of the network itself.

    In float32 and better only: in 16 bits a deep network makes a tenth and more out of another order of rounding.

    Args:
        again: of a network in training, the same as expected, computed once more. Where the two differ, layers draw at
            random, and nothing can be said. Statistics of a batch make rounding grow: seen to be 2e-3 in a ResNet-152.
    """
    error, limit = relative_error(got, expected), MAX_RELATIVE_ERROR
    if again is not None:
        limit = MAX_TRAINING_ERROR
        if relative_error(again, expected) > limit / 10:
            return
    if not error < limit:
        raise MeasurementError("wrong_output", f"compiled, the output differs by {error:.1e} (relative L2)")


def check_samples(got, expected, measured_precision):
    """Raise MeasurementError unless an operator's output, at some places, is what float64 gives.

    The error may be ten times that of rounding the operands, because sums grow long.
    """
    limits = {"tf32": 1e-3, "float16": 1e-3} | {name: limit for limit, name in PRECISION_BY_ERROR}
    limit = 10 * max((limit for name, limit in limits.items() if name in measured_precision), default=1)
    error = relative_error(got, expected)
    if not error < limit:
        raise MeasurementError("wrong_output", f"the output differs from float64's by {error:.1e} (relative L2)")


def probe_inputs(seed=0):
    """Seeded normal inputs of a matrix product and a convolution.

    Returns:
        ((a, b), (x, w)): float32 of shapes (1024, 1024) twice, (4, 128, 32, 32) and (128, 128, 3, 3): libraries leave
        the tensor cores alone for products that are much smaller.
    """
    random = np.random.default_rng(seed)
    shapes = (1024, 1024), (1024, 1024), (4, 128, 32, 32), (128, 128, 3, 3)
    a, b, x, w = (random.standard_normal(shape, dtype=np.float32) for shape in shapes)
    return (a, b), (x, w)


def name_precision(matmul_error, convolution_error, is_float16=False):
    """What the hardware did, from the relative errors of probe products against float64.

    float16 and TF32 have significands of the same length: is_float16 says that the results came as float16.
    """
    names = [_name_one(error) for error in (matmul_error, convolution_error)]
    if is_float16:
        names = [name.replace("tf32", "float16") for name in names]
    return names[0] if names[0] == names[1] else "matmul {}, convolution {}".format(*names)


def _name_one(error):
    return next((name for limit, name in PRECISION_BY_ERROR if error < limit), "lower")
