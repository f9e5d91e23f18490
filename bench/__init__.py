"""The shared rooms of the benchmark: the scripts at the top are short because this is here."""

import platform
import sys

if sys.version_info < (3, 11):
    print(
        f"PYTHON={sys.executable!r} is Python {platform.python_version()}: use 3.11 or newer, or leave it to make",
        file=sys.stderr,
    )
    sys.exit(2)
