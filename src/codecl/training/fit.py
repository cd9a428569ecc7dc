"""Whether a model can learn from a stream, asked before anything is computed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from codecl.attach.patching import in_mode, untouched_buffers
from codecl.methods import Method
from codecl.randomness import untouched_randomness
from codecl.training.plan import Plan
from codecl.training.precision import autocast_forward
from codecl.training.stream import PARTS, Stream, Task, one_input

SAMPLES = ("samples", "samples_before", "gradient_samples", "fisher_batch", "reference")
"""What methods call the number of inputs that they look at in a batch."""


def check_fit(method: Method, stream: Stream, plan: Plan) -> None:
    """Refuse a stream that the model cannot learn from: other inputs, or too few of them for its norms."""
    model = method.model
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm1d)]
    alone = PARTS if any(not norm.track_running_stats for norm in norms) else ("train",) if norms else ()
    if alone == PARTS and (one := next((name for name in SAMPLES if getattr(method, name, None) == 1), None)):
        raise ValueError(f"{one} must be 2 or more: the model has a batch norm without running statistics; got 1.")
    first = one_input(stream.tasks[0].train)[0]
    for task in stream.tasks:
        x = one_input(task.train)[0]
        if isinstance(x, Tensor) and x.is_floating_point() and x.dtype != dtype:
            raise ValueError(
                f"task {task.name!r}: its inputs are {x.dtype}, the model's weights {dtype}. Convert one of them: "
                f"x.to({dtype}), or model.to({x.dtype})."
            )
        other = isinstance(x, Tensor) and (x.shape[1:], x.dtype) != (first.shape[1:], first.dtype)
        if other or (task is stream.tasks[0] and isinstance(x, Tensor) and not _lacks_heads(model)):
            with autocast_forward(method, plan.precision, plan.device):
                _try_forward(method, task, x.to(plan.device), ", unlike those of the first task" if other else "")
        for name in alone:
            size = plan.batch_size if name == "train" else plan.evaluation_batch
            if min(len(getattr(task, name)), size) < 2:
                raise ValueError(
                    f"task {task.name!r}: the model's batch norm needs two inputs in a batch; its {name} part has "
                    f"{len(getattr(task, name))}, in batches of {size}."
                )


def _lacks_heads(model: nn.Module) -> bool:
    """Whether a network has to be told its first task before it can answer."""
    heads = [getattr(module, "heads", None) for module in model.modules()]
    return any(isinstance(some, nn.ModuleList) and len(some) == 0 for some in heads)


def _try_forward(method: Method, task: Task, x: Tensor, unlike: str) -> None:
    """Refuse inputs that the network does not take, with the layer that stopped it; nothing changes."""
    model, entered = method.model, [("", "")]
    names = {module: name for name, module in model.named_modules()}

    def enter(module: nn.Module, inputs: Any) -> None:
        if module in names and not any(module.children()):
            given = [str(list(value.shape)) for value in inputs if isinstance(value, Tensor)]
            entered.append((f"'{names[module]}', {module},", " and ".join(given)))

    hook = register_module_forward_pre_hook(enter)
    try:
        with torch.no_grad(), in_mode(model, False), untouched_randomness(), untouched_buffers(model):
            method.forward(model, (torch.cat([x, x]), torch.zeros(2, dtype=torch.long, device=x.device)))
    except Exception as error:  # whatever the user's network raises
        layer, given = entered[-1]
        where = f" {layer} was given {given}." if given else ""
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.160}"
        raise ValueError(
            f"task {task.name!r}: its inputs are {list(x.shape[1:])} of {x.dtype}{unlike}, and the network does not "
            f"take them ({reason}).{where} Give it inputs that it is made for, or a network made for these."
        ) from error
    finally:
        hook.remove()
        method.replicas.reshard(model)
