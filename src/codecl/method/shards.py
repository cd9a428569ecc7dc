"""One method on a model whose parameters are in shards: ``torch.distributed.fsdp.fully_shard``.

Every process holds some rows of every weight, and a share of the data. While modules run, torch gathers their weights;
around them, ``attach/shards.py`` says what is where. What a method remembers is whole on every process, and the same.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import nn

from codecl.attach import LayerRow
from codecl.attach.heads import TaskHeads, find_task_heads
from codecl.attach.shards import is_sharded, refused_layout, whole
from codecl.attach.survey import covers

if TYPE_CHECKING:
    from codecl.method.method import Method


def in_shards(model: nn.Module) -> bool:
    """Whether parameters of ``model`` are in shards."""
    return any(is_sharded(parameter) for parameter in model.parameters())


def check_shards(method: Method, group: dist.ProcessGroup | None) -> None:
    """Refuse a model in shards that the method would not learn as it learns a whole one."""
    sharded = {name: value for name, value in method.model.named_parameters() if is_sharded(value)}
    name, first = next(iter(sharded.items()))
    if not method.sharded:
        raise TypeError(
            f"'{name}' is in shards (fully_shard), and {method.name} cannot learn from shards. Choose another method "
            "(docs/howto/several-processes.md has a table), or train whole models on several processes, with "
            "net = method.replicate()."
        )
    if odd := {name: reason for name, value in sharded.items() if (reason := refused_layout(value))}:
        name, reason = next(iter(odd.items()))
        raise TypeError(f"'{name}' {reason}: shards must be rows, as fully_shard(model) makes them.")
    processes, there = (1 if group is None else dist.get_world_size(group)), first.device_mesh.size()  # type: ignore[attr-defined]
    if processes != there:
        raise ValueError(
            f"'{name}' is in shards on {there} processes, and group= has {processes}: give the group of all of them, "
            "torch.distributed.group.WORLD."
        )
    heads = find_task_heads(method.model)
    known: Iterable[LayerRow] = getattr(method, "layers", ())
    if any(row.name in sharded and not is_sharded(row.parameter) for row in known):
        raise RuntimeError(
            "fully_shard was called after the method was attached, so that nothing protects the shards. Call it first, "
            "then attach a method to the model."
        )
    apart = [n for n, p in method.model.named_parameters() if n not in sharded and p.requires_grad]
    if alone := [n for n in apart if heads is None or not covers(heads.names, n)]:
        raise TypeError(
            f"'{alone[0]}' is not in shards while other parameters are, so that nobody averages its gradient. Call "
            "fully_shard(model) on the whole model too, after the calls on its parts."
        )


def shard_new_heads(model: nn.Module, heads: TaskHeads, group: dist.ProcessGroup | None) -> None:
    """Cut heads that the model made by itself as the rest of it is cut; the values of process 0 count."""
    from torch.distributed.fsdp import fully_shard

    mesh: Any = next(value.device_mesh for value in model.parameters() if is_sharded(value))  # type: ignore[attr-defined]
    for name in heads.names:
        for head in model.get_submodule(name).children():
            parameters = list(head.parameters())
            if not parameters or any(is_sharded(value) for value in parameters):
                continue
            for value in parameters:
                if group is not None:
                    dist.broadcast(value.data, src=dist.get_global_rank(group, 0), group=group)
            fully_shard(head, mesh=mesh)


def plain_copy(method: Method, into: nn.Module | None) -> nn.Module:
    """The model as it stands, without shards: a copy of it, or ``into`` filled with all its values."""
    if into is None:
        if in_shards(method.model):
            raise TypeError(
                "a model in shards is exported into a plain one that you make: method.export(task, into=Model()), on "
                "every process."
            )
        plain = copy.deepcopy(method.model)
        method.per_task.restore_flags(plain)
        return plain
    if in_shards(into) or into is method.model:
        raise TypeError("into= takes another model, without shards, of the architecture of this one.")
    if (heads := find_task_heads(into)) is not None and method.layers.task_heads is not None:
        heads.select(method.layers.task_heads.selected)
    try:
        into.load_state_dict({name: whole(value) for name, value in method.model.state_dict().items()})
    except RuntimeError as error:
        raise ValueError(f"into= is not of the architecture of the model: {error}") from None
    return into
