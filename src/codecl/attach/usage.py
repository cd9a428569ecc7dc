"""Whether every call of a module uses all its parameters, so that none is to be looked for."""

from __future__ import annotations

from torch import nn

LAYERS = {
    f"torch.nn.modules.{file}"
    for file in ("activation", "batchnorm", "conv", "instancenorm", "linear", "normalization", "rnn", "sparse")
}
"""Where torch has layers whose every call uses all their parameters."""


def uses_everything(module: nn.Module) -> bool:
    """Whether every call of ``module`` uses all its parameters, whatever it is given, as far as classes tell.

    Known are layers of torch, sequences of what is known, and classes that say ``uses_everything = True`` of themselves
    and have known parts. A subclass may do anything.
    """
    if next(module.parameters(), None) is None:
        return True
    kind = type(module)
    known = kind in (nn.Sequential, nn.ModuleList) or kind.__module__ in LAYERS or "uses_everything" in vars(kind)
    return known and all(map(uses_everything, module.children()))
