"""The package that the scripts share: they are short because this is here."""

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
    """The line for a ModuleNotFoundError."""
    return (
        f"the package {error.name} is missing in {sys.executable}: run it by make, which installs it, "
        "or `pip install -r requirements-common.txt` there"
    )


def explain_missing_package(kind, error, trace):
    """Say in one line that a package is missing, before a script could do so itself."""
    if not isinstance(error, ModuleNotFoundError):
        return sys.__excepthook__(kind, error, trace)
    print(missing_package(error), file=sys.stderr, flush=True)
    os._exit(2)  # a hook cannot choose the exit status otherwise


sys.excepthook = explain_missing_package
