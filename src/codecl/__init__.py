"""Continual learning by gradient projection: one network, task after task, without forgetting and without old data.

from codecl import CodeCL

method = CodeCL(model, heads=["classifier"])
method.guard(optimizer)
for t, loader in enumerate(loaders):
    method.begin_task(t, loader)
    train(model, loader, optimizer)
    method.end_task(loader)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from codecl.algebra import Conceptor, Moments, Subspace
from codecl.attach import Projection, UncoveredWeights, UnseenUse
from codecl.layers import LayerKind, register, register_matrices, register_norm
from codecl.method import ProtectionWarning
from codecl.methods import (
    AGEM,
    API,
    CUBER,
    DFGP,
    ER,
    EWC,
    GPM,
    HAT,
    OWM,
    SGP,
    TRGP,
    TRGPSD,
    CodeCL,
    Method,
    Multitask,
    UnsafeOptimizer,
)
from codecl.networks import MultiHead

__version__ = "0.1.0"

if TYPE_CHECKING:
    from codecl.runs.export import load
    from codecl.training.check import check_method


def __getattr__(name: str) -> Any:
    """The battery for methods and trained runs bring the engine with them: they are loaded when they are asked for."""
    if name in (places := {"load": "codecl.runs.export", "check_method": "codecl.training.check"}):
        return getattr(import_module(places[name]), name)
    raise AttributeError(f"module 'codecl' has no attribute {name!r}")


__all__ = [
    "AGEM",
    "API",
    "CUBER",
    "DFGP",
    "ER",
    "EWC",
    "GPM",
    "HAT",
    "OWM",
    "SGP",
    "TRGP",
    "TRGPSD",
    "CodeCL",
    "Conceptor",
    "LayerKind",
    "Method",
    "Moments",
    "MultiHead",
    "Multitask",
    "Projection",
    "ProtectionWarning",
    "Subspace",
    "UncoveredWeights",
    "UnsafeOptimizer",
    "UnseenUse",
    "__version__",
    "check_method",
    "load",
    "register",
    "register_matrices",
    "register_norm",
]
