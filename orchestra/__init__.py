"""The ideas of the papers as pure functions: no I/O, no prompt text, nothing of ours imported."""
