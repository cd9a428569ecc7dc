"""Models inside something that runs them in another way: what would pass by a forward of ours is refused by name."""

from __future__ import annotations

from torch import nn

_PROCESSES = "is not supported yet: attach to the module inside it, on one process"
_FIXED = "computes what was fixed before a method could stand in for it: attach to the module it was made from"
REASONS = {
    "DistributedDataParallel": _PROCESSES,
    "FullyShardedDataParallel": _PROCESSES,
    "DataParallel": "runs copies past the forwards that protect the model: attach to the module inside it",
    "ScriptModule": _FIXED,
}


def refuse_wrappers(model: nn.Module) -> None:
    """Refuse a model that is, or holds, a wrapper past which nothing can be protected."""
    for name, module in model.named_modules():
        for base in type(module).__mro__:
            if base.__module__.startswith("torch.") and (reason := REASONS.get(base.__name__)):
                where = f"'{name}': " if name else ""
                raise TypeError(f"{where}a {base.__name__} model {reason}.")
