"""The ideas of the papers: no I/O, no prompt text, no imports from our other folders."""
