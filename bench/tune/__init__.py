"""make best: what can be tried, what to try next, and the answer. Knows no framework."""
