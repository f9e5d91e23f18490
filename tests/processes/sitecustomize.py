"""Every Python that a test starts runs this first: there too no package reads the host's energy.

With LIKE_A_MAC=1 it has macOS's settings: workers are spawned, PyTorch shares their batches by file name, nobody tells
which cores may be used, and our own files of /proc and /sys are not there.
"""

import builtins
import multiprocessing
import os
import sys
from pathlib import Path

for package in ("pynvml", "zeus_apple_silicon"):
    sys.modules[package] = None

if os.environ.get("START_METHOD"):  # forkserver is Linux's default from Python 3.14 on
    multiprocessing.set_start_method(os.environ["START_METHOD"])
if os.environ.get("LIKE_A_MAC"):
    import_module = builtins.__import__

    def import_and_share(*arguments, **named):
        """PyTorch has no variable for it, and most processes never import PyTorch."""
        module = import_module(*arguments, **named)
        if share := getattr(sys.modules.get("torch.multiprocessing"), "set_sharing_strategy", None):
            share("file_system")
        return module

    def on_linux_only(method):
        def call(path, *arguments, **named):
            if path.parts[:2] in (("/", "proc"), ("/", "sys")):
                raise FileNotFoundError(path)
            return method(path, *arguments, **named)

        return call

    multiprocessing.set_start_method("spawn")
    builtins.__import__ = import_and_share
    Path.read_text, Path.write_text = on_linux_only(Path.read_text), on_linux_only(Path.write_text)
    for name in ("sched_getaffinity", "sched_setaffinity"):  # a Mac has neither
        vars(os).pop(name, None)
