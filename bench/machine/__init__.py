"""Where it runs: the host, and what its sensors and meters say."""
