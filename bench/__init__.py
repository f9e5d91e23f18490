"""Code that all benchmark scripts share."""

import os
import resource
import sys


def explain_import(error):
    """Return one line for an error of an import: the missing package, or what in the environment may be the cause."""
    if isinstance(error, ModuleNotFoundError):
        fix = "" if os.environ.get("PYTHON") else "`make image` installs it, or "
        fix += "`pip install -r requirements/common.txt` there, and the framework"
        return f"the package {error.name} is missing in {sys.executable}: {fix}"
    names = ("PYTHONPATH", "LD_LIBRARY_PATH")
    fixes = [f"unset {name}={os.environ[name]!r}" for name in names if os.environ.get(name)]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        fixes.append(f"raise `ulimit -v`, by which this process may use {limit / 2**30:.1f} GiB of address space")
    reason = " ".join(str(error).split()).rpartition("Original error was: ")[2]  # NumPy's has 20 lines before it
    return ": ".join(filter(None, [type(error).__name__, reason, ", or ".join(fixes)]))


def print_failed_import(kind, error, trace):
    """Print one line and exit with 2 if an import has failed, as in the system's Python, else print the traceback."""
    if isinstance(error, ImportError):
        print(explain_import(error), file=sys.stderr)
        sys.exit(2)
    sys.__excepthook__(kind, error, trace)


sys.excepthook = print_failed_import
