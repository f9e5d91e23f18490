"""Define what a framework provides. Each one is a module on_<name>.py in a folder of its own, with these functions:

    find_device(settings) -> Device
        settings.use_gpu: True, False, or None for the best device; without a GPU the answer is the CPU, not an error.
        It also sets up this process, such as its number of threads.
    open_session = functools.partial(session.open_session, DeviceContext), its own DeviceContext
    join_ranks(ranks, device) -> Group    of bench/host/ranks.py, unless LACKS of bench/settings.py has NUM_DEVICES

base.py has the classes that such a module implements, session.py what is timed.
"""

import importlib
import os
import traceback
from dataclasses import dataclass

from bench import explain_import, process
from bench.settings import SettingError
from bench.timing import MeasurementError

# Other names than those of the packages, which a file next to it could not import.
FOLDERS = {"torch": "pytorch", "tensorflow": "keras_jax_tf", "jax": "keras_jax_tf", "mlx": "apple_mlx"}


@dataclass(frozen=True)
class Device:
    """Where a framework would run; known before anything is built, so that a failure's row has it too."""

    type: str  # "cpu", "cuda", "mps" ..., as in PyTorch; the column device
    device_name: str | None  # None: the system knows the name better
    framework_version: str
    num_threads: int  # CPU threads
    emulates_bfloat16: bool = False  # which is slow; such a card is fast in float16
    is_integrated: bool | None = None  # a GPU whose memory is the system's; None: the framework cannot tell
    rated_bandwidth: float | None = None  # its memory's, in GB/s
    memory_bytes: int | None = None  # that it can use of a GPU's own, or of its slice (MIG); None: unknown
    # Why COMPILE cannot be used, and the fix; "" if it can; None: `make all` does not compile on this type of device.
    why_not_compiled: str | None = None
    note: str = ""  # what the user has to know before the first step


def load(name):
    """Return the module of a framework; raises SettingError if it is broken, ModuleNotFoundError if it is missing."""
    # The first card is then the same one for CUDA and for nvidia-smi.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    try:
        return importlib.import_module(f"{__name__}.{FOLDERS[name]}.on_{name}")
    except ModuleNotFoundError:
        raise
    except Exception as error:  # such as TensorFlow's own NotFoundError for a Metal plug-in of another version
        raise SettingError(f"FRAMEWORK={name!r} cannot be imported: {explain_import(error)}") from None


# Lower-case parts of an exception's type name or message, by the status that they mean. alloc_failed: cuBLAS and cuDNN;
# killed by signal: the system ended a worker that used too much memory; engine: cuDNN's, which some formats do not have
# on older cards; triton: COMPILE=1 on a card below compute capability 7.0; the C++ compiler: Inductor's.
STATUSES = {
    "out_of_memory": (
        *("memoryerror", "out of memory", "can't allocate memory", "alloc_failed", "killed by signal: killed"),
        *("resourceexhaustederror", "failed to allocate memory", "dst tensor is not initialized"),  # TensorFlow
        *("resource_exhausted", "invalid buffer size", "insufficient memory", "maximum allowed buffer size"),
        *("unable to allocate", "resource limit ("),  # MLX
    ),
    "unsupported": (
        *("notimplementederror", "not implemented for", "not implemented on mps", "doesn't support float64"),
        *("not supported at the mps", "not supported on mps", "not supported on the gpu", "only supports float32"),
        *("only supported on", "status_not_supported", "support for that dtype"),  # 8 bits on older cards and Macs
        *("find an engine", "no valid engine", "no execution plans support", "no kernel image is available"),
        *("too old to be supported by the triton", "unimplemented:"),  # XLA; a type of TensorFlow has the same word
        *("unsupported_ptx", "invalid_ptx", "unsupported toolchain"),  # a driver that is older than the kernels
        *("cannot assign a device", "no opkernel was registered", "could not satisfy device specification"),
        *("no working c++ compiler found", "python.h: no such file"),
        *("expected more than 1 value per channel", "requires more than one value per channel"),  # BatchNorm of an item
    ),
}


def find_status(error):
    """Return the status and the note of a failed measurement."""
    if isinstance(error, MeasurementError):
        return error.status, str(error)
    reason = " ".join(str(error).split()) or type(error).__name__
    full = f"{type(error).__name__}: {reason}"
    for status, texts in STATUSES.items():
        if any(text in full.lower() for text in texts):
            return status, reason
    return "failed", full


def classify_failure(error):
    """Return the cells of a failed measurement, its status and note; print the traceback of an unexpected failure."""
    status, note = find_status(error)
    if status == "failed" and not isinstance(error, OSError) and process.TAKEN not in note:  # which say enough
        traceback.print_exception(error)
    return {"status": status, "note": note}
