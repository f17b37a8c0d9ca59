"""The laboratory: when does a reward for each decision help? docs/training.md has what was found.

language.py   the world, and the compact language in which a policy reads and writes
players.py    who decides without a model: expert, flawed demonstrator, written rule, random play
arms.py       what is compared, and how it is trained; the command
report.py     the table and the curves
"""
