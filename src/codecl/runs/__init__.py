"""Benchmarks, recipes, run records and comparisons: everything a command of ``codecl`` does."""
