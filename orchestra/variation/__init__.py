"""Runs made again with something changed: reuse, forks, what-if; and how two runs differ."""

MODES = ("none", "once", "changed", "rewrite")  # of the fixture `recorded`
