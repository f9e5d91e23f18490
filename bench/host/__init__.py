"""Where it runs: the host and its sensors."""
