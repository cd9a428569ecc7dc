"""The modules of a model as they were when a method was attached."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


class Structure:
    """Which module has which children, but for heads that the model adds by itself, ``ignored`` by name.

    What is replaced later, nothing protects.
    """

    def __init__(self, model: nn.Module, ignored: Sequence[str]) -> None:
        self._children = [
            (name, module, dict(module._modules))
            for name, module in model.named_modules()
            if not any(name == head or name.startswith(head + ".") for head in ignored)
        ]

    def check(self) -> None:
        """Refuse a model in which a module with parameters was replaced, added or removed."""
        for name, module, children in self._children:
            if module._modules != children:
                self._refuse(name, children, module._modules)

    @staticmethod
    def _refuse(parent: str, then: dict[str, nn.Module | None], now: dict[str, nn.Module | None]) -> None:
        for key in dict.fromkeys((*then, *now)):
            old, new = then.get(key), now.get(key)
            if old is new or not any(m is not None and any(True for _ in m.parameters()) for m in (old, new)):
                continue
            what = "added" if old is None else "removed" if new is None else "replaced"
            raise RuntimeError(
                f"'{parent + '.' if parent else ''}{key}' was {what} after the method was attached, so that nothing "
                "protects what is there now. Change the model first, then attach a method to it."
            )
