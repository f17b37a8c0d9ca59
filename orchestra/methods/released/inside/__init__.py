"""What runs in the process of a clone (clone.py). It imports nothing of this program."""
