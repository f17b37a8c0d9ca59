"""The laboratory: DA-GRPO against imitation and outcome rewards, in minutes on a CPU.

`python -m orchestra.training.lab` trains and compares the arms (arms.py). docs/training.md tells
what was found.
"""
