"""How long it takes, how sure that is, and the proof that the result is right."""
