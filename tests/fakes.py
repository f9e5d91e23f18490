"""A clock that only moves when told to, a device that works behind the host's back, a child without a process."""

import importlib
import math

from bench import child, process
from bench.settings import read_settings

# What a child says of one result
LINE = {"device": "cpu", "device_name": None, "framework": "torch", "framework_version": "1", "workload": "image"}
LINE |= {"model": "resnet50", "phase": "inference", "scope": "device", "unit": "images/s", "status": "ok", "flags": ""}
LINE |= {"note": "", "windows": 9, "first_step_seconds": 1.0, "world_size": 1, "precision": "float32"}


def workload_of_command(command, settings):
    """Return the Workload of a command ("image": image_benchmark.py) with these settings."""
    return getattr(importlib.import_module(f"{command}_benchmark"), f"{command}_workload")(settings)


def measure_of_command(command):
    """Return what a child of a command does, as its script passes it to main()."""
    script = importlib.import_module(f"{command}_benchmark")
    return getattr(script, f"measure_{command}", child.measure_workload)


def describe(command, **environ):
    """Return the Workload of a command with the settings of an environment, on a CPU."""
    return workload_of_command(command, read_settings(command, environ, "cpu"))


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Device:
    """An asynchronous device: step() only queues work, which is complete `work(i)` seconds later.

    Args:
        clock: moved by what the host does and waits for.
        work: step number (from 0) -> seconds on the device.
    """

    queue_steps, num_workers, prepare = None, 0, None
    after_first_step = trace_count = staticmethod(lambda *_: None)
    matrices, steps_run, is_trained, first_loss = staticmethod(dict), False, False, None
    SUBMIT_SECONDS = 1e-5
    BARRIER_SECONDS = 0.0
    READ_SECONDS = 2e-5

    def __init__(self, clock, work=lambda i: 0.010):
        self.clock, self.work = clock, work
        self.free_at = 0.0
        self.steps, self.notes = 0, []

    def step(self):
        self.clock.now += self.SUBMIT_SECONDS
        self.free_at = max(self.free_at, self.clock.now) + self.work(self.steps)
        self.steps += 1

    def synchronize(self):
        self.clock.now = max(self.clock.now, self.free_at) + self.BARRIER_SECONDS

    def read(self):
        self.clock.now = max(self.clock.now, self.free_at) + self.READ_SECONDS


class FakeChild(process.Child):
    """A Child without a process.

    Args:
        work: (FakeChild) -> a generator that calls write(), yields when it waits for a request, and returns the exit
            status. KeyboardInterrupt in it is a Ctrl-C in the parent process.
    """

    def __init__(self, work, command, environ, show=None, limit=math.inf):
        super().__init__(command, environ, show, limit)
        self.script, self.requests, self.work_on = command[1], [], work

    @property
    def finds_device(self):
        return self.environ[process.TASK] == process.FIND_DEVICE

    def write(self, **cells):
        self.lines.append(LINE | cells)

    def start(self):
        self.progress, self.process = self.work_on(self), self
        return self

    def ask(self, *requests):
        self.requests += requests
        return self

    def wait(self):
        try:
            next(self.progress)
        except StopIteration as ended:
            self.exit_status = ended.value or 0
        return self.exit_status is None

    def terminate(self):
        self.progress.close()

    def poll(self):
        return process.INTERRUPTED

    def end(self, exit_status):
        self.exit_status = exit_status
