"""Code that all benchmark scripts share."""

import os
import platform
import sys

if sys.version_info < (3, 11):
    print(
        f"PYTHON={sys.executable!r} is Python {platform.python_version()}: use 3.11 or newer, or leave it to make",
        file=sys.stderr,
    )
    sys.exit(2)


def missing_package(error):
    """Return the line for a ModuleNotFoundError."""
    return (
        f"the package {error.name} is missing in {sys.executable}: start the command with make, which installs it, "
        "or run `pip install -r` there with the requirements file of the framework"
    )


def end_while_importing(kind, error, trace):
    """Say a missing package or Ctrl-C in one line, before a script has reached bench/cli.py."""
    if isinstance(error, ModuleNotFoundError):
        words, status = missing_package(error), 2
    elif isinstance(error, KeyboardInterrupt):
        words, status = "interrupted", 130
    else:
        return sys.__excepthook__(kind, error, trace)
    print(words, file=sys.stderr, flush=True)
    os._exit(status)  # a hook cannot choose the exit status otherwise


sys.excepthook = end_while_importing
