"""A benchmark that takes a fraction of a second: the network and the stream of ``check_method``."""

from codecl.benchmarks.registry import Benchmark
from codecl.training.check import network, small_stream

TINY = Benchmark("three tasks of random images", 3, lambda root, seed: small_stream(), lambda stream: network())
