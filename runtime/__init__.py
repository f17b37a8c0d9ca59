"""What makes a run real: the tape, the models, the pool, the run folder, the command line."""

__version__ = "0.2.0"
