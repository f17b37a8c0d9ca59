"""What makes a run real: the tape, the models, the pool, the run folder, the command line."""
