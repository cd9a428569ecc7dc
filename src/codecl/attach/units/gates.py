"""Masks on units where no protected weight reads them: at the inputs of heads, and where a norm is to mix them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from codecl.attach.survey import LayerTable
from codecl.attach.units.groups import Channels
from codecl.attach.units.units import Units
from codecl.layers.base import kind_of

Mask = Callable[[str], Tensor | None]
"""The mask of a group of units, one number for each; None for no mask."""


class Gates:
    """Hooks that multiply units by ``mask(group)``, on ``model`` from ``put()`` to ``take_away()``."""

    def __init__(self, model: nn.Module, table: LayerTable, channels: Channels, mask: Mask) -> None:
        self.model, self.table, self.channels, self.mask = model, table, channels, mask
        self._hooks: list[RemovableHandle] = []

    def put(self) -> None:
        """Also on heads that the model has gained."""
        self.take_away()
        for name, x in self._readers():
            hook = partial(self._on_input, x)
            self._hooks.append(self.model.get_submodule(name).register_forward_pre_hook(hook, with_kwargs=True))
        for name, x in self._sources():
            for kind in self.table.protected[name].uses:
                self._hooks.append(kind.module.register_forward_hook(partial(self._on_output, x)))

    def take_away(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @torch.no_grad()
    def bake(self, plain: nn.Module) -> None:
        """Scale the weights and biases of ``plain``, a copy of the model, as the masks would scale units now."""
        for name, x in self._readers():
            if (a := self.mask(x.group)) is not None:
                _scale(plain.get_submodule(name), partial(x.columns, a))
        for name, x in self._sources():
            if (a := self.mask(x.group)) is not None:
                uses = self.table.protected[name].uses
                modules = [plain.get_submodule(kind.module_name) for kind in uses]
                _scale(modules[0], partial(_rows, a))
                for bias in {getattr(module, key, None) for module in modules for key in uses[0].biases}:
                    if bias is not None:
                        bias.mul_(a)

    def _on_input(self, x: Units, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if (a := self.mask(x.group)) is None:
            return None
        if args:
            return (_masked(args[0], x, a), *args[1:]), kwargs
        first = next(iter(kwargs))
        return args, {**kwargs, first: _masked(kwargs[first], x, a)}

    def _on_output(self, x: Units, _: nn.Module, __: Any, output: Tensor) -> Tensor | None:
        return None if (a := self.mask(x.group)) is None else _masked(output, x, a)

    def _readers(self) -> Iterator[tuple[str, Units]]:
        """Layers that are not protected; what holds for the head that was traced holds for all beside it."""
        heads = self.table.task_heads.names if self.table.task_heads is not None else ()
        for name, x in self.channels.readers.items():
            several = next((container for container in heads if name.startswith(container + ".")), None)
            if several is None:
                yield name, x
                continue
            _, dot, rest = name.removeprefix(several + ".").partition(".")
            for i, _ in enumerate(self.model.get_submodule(several).children()):
                yield f"{several}.{i}{dot}{rest}", x

    def _sources(self) -> Iterator[tuple[str, Units]]:
        """Weights that write units which a norm mixes."""
        for name, x in self.channels.writes.items():
            if x is not None and x.group in self.channels.mixed:
                yield name, x


def _masked(tensor: Tensor, x: Units, a: Tensor) -> Tensor:
    return tensor * x.along(a, tensor).to(tensor.dtype)


def _rows(a: Tensor, shape: Sequence[int]) -> Tensor:
    return a.reshape(*shape[:2], 1)


def _scale(module: nn.Module, factor: Callable[[Sequence[int]], Tensor]) -> None:
    """Multiply the weight of ``module`` by a factor for its shape ``[g, o, d]``."""
    registered = kind_of(module)
    assert registered is not None
    kind = registered(module, registered.weights[0])
    W, stack = kind.value, kind.matrices(kind.value)
    W.copy_(kind.parameter(stack * factor(stack.shape).to(W.dtype)))
