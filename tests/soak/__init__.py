"""Runs that are killed, or meet a fault, at any file-system call, against runs that never did: ``make soak``."""
