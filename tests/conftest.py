"""Settings for every test: reproducible draws, and one thread for each pytest worker."""

import os

import torch
from hypothesis import HealthCheck, settings

# A drawn case builds tensors, and its first call may load a library: time is not a sign of a bad test.
settings.register_profile(
    "quick", derandomize=True, deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", settings.get_profile("quick"), derandomize=False, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

torch.set_num_threads(1)
