"""Normalisation layers. Input correlations do not describe them: they are frozen, copied per task, or left free."""

from __future__ import annotations

from torch import Tensor, nn

_NORMS: list[type[nn.Module]] = [nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm]


def register_norm(module_type: type[nn.Module]) -> type[nn.Module]:
    """Modules of this type are normalisation layers; usable as a class decorator."""
    if module_type not in _NORMS:
        _NORMS.append(module_type)
    return module_type


def is_norm(module: nn.Module) -> bool:
    """Whether ``module`` is a normalisation layer, by its type.

    Outside of torch by the name of its type (``LlamaRMSNorm``), where its parameters only scale and shift.
    """
    own = dict(module.named_parameters())
    vectors = bool(own) and own.keys() <= {"weight", "bias"} and all(p.ndim == 1 for p in own.values())
    return isinstance(module, tuple(_NORMS)) or (vectors and type(module).__name__.endswith(("LayerNorm", "RMSNorm")))


def running_statistics(model: nn.Module) -> dict[str, Tensor]:
    """The buffers that normalisation layers update as data passes, by name."""
    return {
        f"{name}.{key}" if name else key: buffer
        for name, module in model.named_modules()
        if is_norm(module)
        for key, buffer in module.named_buffers(recurse=False)
    }
