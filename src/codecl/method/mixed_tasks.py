"""One pass over inputs of several tasks, each through the head of its own.

With ``n_t`` of the ``n`` inputs from task ``t`` and ``L_t`` their mean loss under its head,

    L = Σ_t n_t L_t / n

Below the heads the inputs are one batch: batch normalisation takes its statistics over all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codecl.attach.patching import patch
from codecl.method.method import Method


def check_heads(method: str, heads: Sequence[str]) -> None:
    """Refuse heads that are kept in copies: no optimizer trains the copies of other tasks."""
    if heads:
        raise ValueError(
            f"{method} trains the heads of several tasks at a time, and {list(heads)} would be one module whose copies "
            "for other tasks no optimizer reaches. Use a model with a head for each task, codecl.networks.MultiHead, "
            "or leave heads out: one head for all tasks."
        )


def mixed_loss(method: Method, batch: Sequence[Tensor], tasks: Tensor, net: nn.Module | None = None) -> Tensor:
    """``L`` of ``batch``, inputs and labels; ``tasks`` has the position of the task of each input.

    ``net`` is what ``replicate`` returned.
    """
    heads, net = method.layers.task_heads, method.model if net is None else net
    if heads is None:
        return method.loss(method.forward(net, batch), batch)
    rows = {t: torch.nonzero(tasks == t).flatten() for t in sorted(set(tasks.tolist()))}
    there = len(method.model.get_submodule(heads.names[0]))  # type: ignore[arg-type]
    if absent := [t for t in rows if not 0 <= t < there]:
        raise ValueError(
            f"inputs of the tasks at positions {absent} have no head: the model has {there}, from 0 on. Begin a task "
            "before learning from its inputs."
        )
    forwards: dict[nn.Module, _OwnHead] = {}
    for name in heads.names:
        several = method.model.get_submodule(name)
        assert isinstance(several, nn.ModuleList)
        forwards[several[heads.selected]] = _OwnHead(several, heads.selected, rows)
    take_back = patch((head, "forward", forward) for head, forward in forwards.items())
    try:
        output = method.forward(net, batch)
    finally:
        take_back()
    if not isinstance(output, Tensor) or len(output) != len(tasks):
        raise TypeError(
            f"{method.name} learns from inputs of several tasks in one batch: the output must be a tensor with a row "
            f"for each of the {len(tasks)} inputs; got {type(output).__name__}."
        )
    own = next(iter(forwards.values()))
    widths = own.widths
    if len(set(widths.values())) > 1 and not own.put_out(output):
        raise TypeError(
            f"{method.name} learns from inputs of several tasks in one batch, and their heads have "
            f"{sorted(widths.values())} outputs: the output must be that of the head itself. Put what follows it "
            "(a softmax, say) into loss=."
        )
    total = output.new_zeros(())
    for t, those in rows.items():
        part = tuple(value[those.to(value.device)] for value in batch)
        total = total + len(those) * method.loss(output[those.to(output.device)][..., : widths.get(t)], part)
    return total / len(tasks)


class _OwnHead:
    """The forward of the selected head while inputs of several tasks pass: each goes through the head of its own.

    Narrower outputs are filled up with zeros; ``widths`` says how wide those of each task are.
    """

    def __init__(self, heads: nn.ModuleList, selected: int, rows: dict[int, Tensor]) -> None:
        self.rows, self.widths = rows, dict[int, int]()
        self.output: Tensor | None = None
        original: Callable[..., Any] = heads[selected].forward
        self.heads = {t: original if t == selected else heads[t] for t in rows}
        self.back = torch.cat(list(rows.values())).argsort()

    def put_out(self, output: Tensor) -> bool:
        """Whether ``output`` is that of the head; DistributedDataParallel copies it."""
        own = self.output
        return output is own or (own is not None and output.shape == own.shape and torch.equal(output, own))

    def __call__(self, features: Tensor) -> Tensor:
        outputs = {t: self.heads[t](features[those.to(features.device)]) for t, those in self.rows.items()}
        self.widths = {t: out.shape[-1] for t, out in outputs.items()}
        widest = max(self.widths.values())
        filled = [F.pad(out, (0, widest - out.shape[-1])) for out in outputs.values()]
        self.output = torch.cat(filled)[self.back.to(features.device)]
        return self.output
