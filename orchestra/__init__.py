"""The package of orchestra-min. docs/ and the README say where to begin: orchestra_min.py."""

__version__ = "0.4.0"
