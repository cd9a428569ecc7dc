"""Runs on disk.

recipe      all that is needed to run an experiment again, as data
plugins     methods and benchmarks by name, also a user's own
run         running a recipe in a run directory
run_many    several runs at a time
sweep       one method at several values of its hyperparameters
rundir      the run directory: recipe, log, checkpoints, result
records     what a run directory records, as typed values; events are the lines of its log
untrusted   JSON and TOML that anyone may have written; typed checks values against type hints
progress    what a person sees of runs in plain lines; live is the same on a terminal
trackers    TensorBoard, MLflow and Weights & Biases
"""
