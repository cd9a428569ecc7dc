"""Settings that the tests of API share."""

EXACT = {"atol": 1e-9, "rtol": 0}
FEW = {"n": 3, "batch": 3}
TIGHT = {"heads": ["head"], "threshold": 1.0, "increment": 0.0, "rho": 1.0, "channels": 4}
"""Every direction is protected, and every layer short of plasticity gets more inputs."""
