"""The seam between the benchmark and the frameworks. A framework is one file here, on_<name>.py, that offers:

    find_device(settings) -> Device
        settings.use_gpu: True, False, or None for the best there is; no GPU found is no error but the CPU
    open_session(workload, settings, phase, scope) -> Session

A file called torch.py would shadow the real one, hence the name.
"""

import importlib
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bench.settings import SettingError

PREFIX = "on_"
REQUIREMENTS = {"tensorflow": "requirements-cuda-tensorflow.txt"}  # on Linux; the others are in requirements-cuda.txt


@dataclass(frozen=True)
class Device:
    """Where a framework would run; known before anything is built, so that a failure's row has it too."""

    device: str  # "cpu", "cuda", "mps" ...
    device_name: str | None  # None: the system knows the name better
    framework_version: str
    num_threads: int  # CPU threads


class Session(Protocol):
    """One workload on one device, checked and ready to be timed.

    What a step is follows from phase and scope. Optional: trace_count(), how often the step was compiled; and in
    the scope "epoch", where a workload has a dataset:

    train_epoch(order)   submit a step for each batch of the training data in this order, the smaller last one too
    losses()             of those steps, as floats
    evaluate()           the share of the test data that is sorted right
    """

    parameters: int | None  # trainable; None where there is no model
    measured_precision: str | None  # as bench/timing/check.py names it
    num_workers: int | None  # processes that prepare batches; None: the batches are resident
    queue_steps: int | None  # batches that they may have ready or in their hands
    prepare: Callable[[], None] | None  # what has to come before each step, and is not timed

    def step(self, items: int | None = None) -> None:
        """Submit one step on the next batch, or on its first items; may return before it is done."""

    def synchronize(self) -> None:
        """Return when all submitted work is complete."""

    def settle(self) -> None:
        """Called once, after the first step, untimed: prove what that compiled, and forget the memory it took.

        A first step that tries several algorithms takes memory that the work itself does not.
        """

    def probe(self) -> float:
        """Wait for, and read, a scalar that depends on the last step: in training on an updated weight."""

    def peak_memory_bytes(self) -> int | None:
        """The most that this session had allocated on the device; None where the framework cannot say."""

    def reserved_memory_bytes(self) -> int | None:
        """The most that the framework kept for itself there; None where it cannot say."""

    def close(self) -> None:
        """Give the device's memory back."""


def load(name):
    """The module of a framework; raises SettingError where it is unknown or not installed."""
    known = sorted(m.name[len(PREFIX) :] for m in pkgutil.iter_modules(__path__) if m.name.startswith(PREFIX))
    if name not in known:
        raise SettingError(f"FRAMEWORK={name!r} must be one of: {', '.join(known)}")
    try:
        return importlib.import_module(f"{__name__}.{PREFIX}{name}")
    except ModuleNotFoundError as error:
        raise missing_package(name, error) from None
    except ImportError as error:
        raise SettingError(f"FRAMEWORK={name!r} {error}") from None


def missing_package(framework, error):
    """The SettingError for a ModuleNotFoundError."""
    file = "requirements-mac.txt" if sys.platform == "darwin" else REQUIREMENTS.get(framework, "requirements-cuda.txt")
    return SettingError(
        f"FRAMEWORK={framework!r} needs the package {error.name}: `make image FRAMEWORK={framework}` installs it; "
        f"with PYTHON=... install it there: `pip install -r {file}`"
    )


def describe_failure(error):
    """(status, reason) of an exception out of a framework, on one line."""
    reason = " ".join(str(error).split()) or type(error).__name__
    memory = ("out of memory", "can't allocate memory", "unable to allocate", "oom when allocating", "alloc_failed")
    memory += ("invalid buffer size", "killed by signal: killed", "dst tensor is not initialized")
    # cuDNN's autotuner says the second when no candidate's workspace could be had.
    memory += ("failed to allocate memory", "unable to find an engine to execute this computation")
    exhausted = isinstance(error, MemoryError) or type(error).__name__ in ("OutOfMemoryError", "ResourceExhaustedError")
    if exhausted or any(words in reason.lower() for words in memory):
        return "out_of_memory", reason
    unsupported = ("not implemented for", "cannot assign a device", "no opkernel was registered")
    unsupported += ("could not satisfy device specification", "not implemented on mps", "not supported at the mps")
    unsupported += ("doesn't support float64",)
    if isinstance(error, NotImplementedError) or any(words in reason.lower() for words in unsupported):
        return "unsupported", reason
    return "failed", f"{type(error).__name__}: {reason}"
