"""The benchmarks, a file for each family: their streams of tasks and their networks."""
