"""``model.zero_grad()`` while a method is attached: it clears the gradients of what a task adds, too."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn

if TYPE_CHECKING:
    from codecl.method.method import Method


class ClearingGradients:
    """Stands in the instance dictionary of the model, which is how a second method sees that there is a first.

    A deep copy of the model clears its own gradients.
    """

    def __init__(self, method: Method) -> None:
        self._method = method
        self._original: Callable[[bool], None] = method.model.zero_grad

    def __call__(self, set_to_none: bool = True) -> None:
        self._original(set_to_none)
        for parameter in self._method.parameters():
            parameter.grad = None if set_to_none or parameter.grad is None else torch.zeros_like(parameter.grad)

    def __deepcopy__(self, copied: dict[int, Any]) -> Callable[..., None]:
        model: nn.Module = copied[id(self._method.model)]
        return MethodType(type(model).zero_grad, model)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self._method.name} is attached to this model, which cannot be pickled: save model.state_dict() and "
            "method.state_dict(), or the plain model of a task, method.export(task)."
        )


def refuse_attached(model: nn.Module) -> None:
    """Refuse a model that a method is attached to, or a part of which one is."""
    for name, module in model.named_modules():
        if isinstance(vars(module).get("zero_grad"), ClearingGradients):
            at = f" (at '{name}')" if name else ""
            raise RuntimeError(
                f"another method is attached to this model{at}: call its detach() first, or copy with export(task)."
            )
