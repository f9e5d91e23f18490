"""Code that all benchmark scripts share."""

import sys

if sys.version_info < (3, 11):
    print(
        f"PYTHON={sys.executable!r} is Python {sys.version.split()[0]}: use 3.11 or newer, or leave it to make",
        file=sys.stderr,
    )
    sys.exit(2)


def explain_missing(kind, error, trace):
    """Print one line for a package that a script's imports miss, as in the system's Python, else the traceback."""
    if isinstance(error, ModuleNotFoundError):
        print(f"the package {error.name} is missing in {sys.executable}: run `make image`", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = explain_missing
