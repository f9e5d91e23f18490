"""Every Python that a test starts runs this first: there too no package reads the host's energy."""

import sys

for package in ("pynvml", "zeus_apple_silicon"):
    sys.modules[package] = None
