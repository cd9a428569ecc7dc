"""Continual learning by gradient projection: one network, task after task, without forgetting and without old data.

from codecl import CodeCL

method = CodeCL(model, heads=["classifier"])
method.guard(optimizer)
for t, loader in enumerate(loaders):
    method.begin_task(t, loader)
    train(model, loader, optimizer)
    method.end_task(loader)
"""

from codecl.algebra import Conceptor, Moments, Subspace
from codecl.layers import LayerKind, Projection, UncoveredWeights, UnseenUse, register, register_norm
from codecl.methods import CodeCL, Method, UnsafeOptimizer
from codecl.networks import MultiHead

__version__ = "0.1.0"

__all__ = [
    "CodeCL",
    "Conceptor",
    "LayerKind",
    "Method",
    "Moments",
    "MultiHead",
    "Projection",
    "Subspace",
    "UncoveredWeights",
    "UnsafeOptimizer",
    "UnseenUse",
    "__version__",
    "register",
    "register_norm",
]
