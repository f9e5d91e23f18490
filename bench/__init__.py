"""Code that all benchmark scripts share."""

import platform
import sys

if sys.version_info < (3, 11):
    print(
        f"PYTHON={sys.executable!r} is Python {platform.python_version()}: use 3.11 or newer, or leave it to make",
        file=sys.stderr,
    )
    sys.exit(2)
