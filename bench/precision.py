"""Find out in which precision the hardware really computes: a matmul, and a convolution, against float64 (check Q)."""

import os

import numpy as np

from bench.timing import MeasurementError
from bench.workloads.operators import EIGHT_BITS

# The factor of a probe's inputs: they and their sums overflow in float16, but not with float32's exponents.
PROBE_SCALE = 2.0**16
# Upper limits of a matmul's relative L2 error, by the significand that its inputs are rounded to (53, 24, 11 and 8
# bits), halfway between formats in powers of ten. Winograd convolutions in float32 have errors of up to 1e-5.
PRECISION_BY_ERROR = ((1e-11, "float64"), (5e-5, "float32"), (1e-3, "tf32"), (1e-2, "bfloat16"))
# Float16 outputs with the errors of TF32 and bfloat16: sums in float32, or in float16 too.
FLOAT16_NAMES = {"tf32": "float16", "bfloat16": "float16-accumulate"}
EXACT = {"float32", "float64"}
MAX_ERROR = 0.3  # MLX's kernel of quantised weights for CPUs is wrong by 4 % in bfloat16
# Parts of the names of variables that let libraries compute float32 in fewer bits, whatever a framework asks for.
FEWER_BITS = ("FPMATH_MODE", "TF32_OVERRIDE", "TF32_CUBLAS", "EMULATE_SINGLE_PRECISION")
ERROR_LIMITS = {name: limit for limit, name in PRECISION_BY_ERROR}
ERROR_LIMITS |= {name: ERROR_LIMITS[like] for like, name in FLOAT16_NAMES.items()}
ERROR_LIMITS |= dict.fromkeys(EIGHT_BITS, 2e-3)  # exact operands, outputs rounded to bfloat16

_probed = {}  # precisions by context, device, setting and operator: a CPU may need seconds for one in float16


def require(is_right, reason, status="wrong_output"):
    """Raise MeasurementError with this reason unless a result is right."""
    if not is_right:
        raise MeasurementError(status, reason)


def check_precision(context, has_convolutions):
    """Return {operator: the precision that the device computes it in} of a matmul and, if there is one, a convolution.

    It cannot see a precision that differs between sizes. A float32 convolution may have TF32's error (Winograd's).

    Raises:
        MeasurementError: `wrong_output` for float16 under another name, `unsupported` for a TF32 that is missing and
            for float32 in fewer bits, naming what probably did it.
    """
    if context.precision in EIGHT_BITS:  # compared with exact products instead
        return {"matmul": context.precision}
    names = ["matmul", "convolution"] if has_convolutions else ["matmul"]
    computed = {name: probe(context, name) for name in names}
    if context.precision == "tf32" and computed["matmul"] != "tf32":
        raise MeasurementError("unsupported", f"this {context.device} has no TF32, but {computed['matmul']}")
    if context.precision != "float32" or context.weight_bits:
        return computed
    for name, precision in computed.items():
        if precision not in (EXACT if name == "matmul" else EXACT | {"tf32"}):
            switches = [f"{name}={text!r}" for name, text in os.environ.items() if any(map(name.count, FEWER_BITS))]
            fix = f"unset {' and '.join(switches)}" if switches else "set PRECISION=tf32 or bfloat16"
            really = "fewer bits than bfloat16 has" if precision == "lower" else precision
            raise MeasurementError("unsupported", f"this {context.device} computes a float32 {name} in {really}: {fix}")
    return computed


def probe(context, name):
    """Return the precision that a context computes an operator in, which is found out once in a process.

    It follows from the error against float64. The significands of TF32 and float16 are equally long, so the type of the
    output tells them apart.
    """
    key = type(context), context.device, context.precision, context.weight_bits, name
    if key not in _probed:
        left, right, exact = probe_inputs(name)
        scale = 1 if context.precision in ("float16", "mixed_float16") else np.float32(PROBE_SCALE)
        got, is_float16 = context.probe(name, left * scale, right * scale)
        words = f"a {name} of large {context.precision} values overflows, as in float16"
        require(np.isfinite(got).all() and got.any(), words)
        error = relative_error(got.astype(np.float64) / float(scale) ** 2, exact[: len(got)])
        what = f"{name} of quantised weights" if context.weight_bits else name
        words = f"a {what} is wrong by {error:.0%}: the BLAS of this {context.device} fails, or NumPy's"
        require(error <= MAX_ERROR, words)
        measured = next((each for limit, each in PRECISION_BY_ERROR if error < limit), "lower")
        _probed[key] = FLOAT16_NAMES.get(measured, measured) if is_float16 else measured
    return _probed[key]


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


def relative_error(got, expected):
    """Return the L2 norm of the difference, divided by the L2 norm of the expected values."""
    got = np.asarray(got, np.float64)
    expected = np.asarray(expected, np.float64)
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def describe(computed):
    """Return the cell measured_precision: "bfloat16", or "matmul float32, convolution tf32" if they differ."""
    if len(set(computed.values())) < 2:
        return computed.get("matmul")
    return ", ".join(f"{name} {precision}" for name, precision in computed.items())
