"""One linear head per task on a shared backbone: the task-incremental network of GPM (Saha et al., 2021).

logits = W_t · backbone(x),   W_t of the selected task t
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn


class MultiHead(nn.Module):
    """A backbone and a list of heads, of which the selected one is used. Heads are added when first selected.

    A new head's parameters are new: give them to the optimizer after ``select``.

    Args:
        features: size of the backbone's output, the input of every head.
        classes: outputs of every head, or a sequence with the outputs of each task's head.
        init: applied to every new head in place of torch's own initialisation of ``nn.Linear``.
    """

    uses_everything = True  # but for the heads that are not selected

    def __init__(
        self,
        backbone: nn.Module,
        features: int,
        classes: int | Sequence[int],
        *,
        bias: bool = False,
        init: Callable[[nn.Linear], None] | None = None,
    ) -> None:
        super().__init__()
        self.features = features
        self.classes = classes if isinstance(classes, int) else tuple(classes)
        self.bias = bias
        self.init = init
        self.backbone = backbone
        self.heads = nn.ModuleList()
        self.select(0)

    @property
    def selected(self) -> int:
        """The task whose head ``forward`` uses."""
        return self._selected

    def select(self, task: int) -> None:
        """Make ``forward`` use the head of ``task``, adding heads up to it where there are none yet."""
        if not isinstance(task, int) or isinstance(task, bool):
            raise TypeError(f"task must be an int, got {task!r} ({type(task).__name__})")
        if task < 0:
            raise ValueError(f"task must be 0 or more, got {task}")
        # All sizes are looked up before any head is added: a refused task leaves the module as it was.
        for size in [self._classes_of(t) for t in range(len(self.heads), task + 1)]:
            self._add_head(size)
        self._selected = task

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Tensor:
        logits: Tensor = self.heads[self.selected](self.backbone(x, *args, **kwargs))
        return logits

    def _classes_of(self, task: int) -> int:
        if isinstance(self.classes, int):
            return self.classes
        if task >= len(self.classes):
            raise ValueError(f"no head for task {task}: classes={self.classes} names {len(self.classes)} tasks")
        return self.classes[task]

    def _add_head(self, classes: int) -> None:
        like = next(chain(self.backbone.parameters(), self.heads.parameters()), torch.empty(0))
        # Drawn on the CPU wherever the backbone lives: one seed, one head, on every device.
        head = nn.Linear(self.features, classes, bias=self.bias, device="cpu", dtype=like.dtype)
        if self.init is not None:
            self.init(head)
        self.heads.append(head.to(like.device).train(self.training))

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        """Grow to the heads of ``state_dict``. torch calls this before it descends into ``heads``."""
        with torch.random.fork_rng(devices=[]):  # these draws are overwritten: loading must not consume any
            while (key := f"{prefix}heads.{len(self.heads)}.weight") in state_dict:
                self._add_head(state_dict[key].shape[0])
        super()._load_from_state_dict(state_dict, prefix, *args)
