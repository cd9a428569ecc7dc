"""Whether a model can learn from a stream, asked before anything is computed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from codecl.attach.patching import in_mode, untouched_buffers
from codecl.method.gradients import cross_entropy_with_second
from codecl.methods import METHODS, Method
from codecl.networks import MultiHead
from codecl.randomness import untouched_randomness
from codecl.text import in_a_line
from codecl.training.plan import Plan
from codecl.training.precision import autocast_forward
from codecl.training.stream import PARTS, Stream, Task, one_input

SAMPLES = ("samples", "samples_before", "gradient_samples", "fisher_batch", "reference")
"""What methods call the number of inputs that they look at in a batch."""


def check_fit(method: Method, stream: Stream, plan: Plan) -> None:
    """Refuse a stream that the model cannot learn from: other inputs, too few for its norms, or more classes."""
    model = method.model
    _check_heads(model, stream)
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
                output = _try_forward(
                    method, task, x.to(plan.device), ", unlike those of the first task" if other else ""
                )
            if task is stream.tasks[0] and method.loss is cross_entropy_with_second:
                _check_outputs(method, stream, output)
        for name in alone:
            size = plan.batch_size if name == "train" else plan.evaluation_batch
            if min(len(getattr(task, name)), size) < 2:
                raise ValueError(
                    f"task {task.name!r}: the model's batch norm needs two inputs in a batch; its {name} part has "
                    f"{len(getattr(task, name))}, in batches of {size}."
                )


def _check_heads(model: nn.Module, stream: Stream) -> None:
    """Refuse a network that names the heads of fewer tasks than there are."""
    for module in model.modules():
        if isinstance(module, MultiHead) and not isinstance(module.classes, int):
            named = max(len(module.classes), len(module.heads))
            if named < len(stream):
                raise ValueError(
                    f"the stream has {len(stream)} tasks, and the network names the heads of {named}: "
                    f"classes={list(module.classes)}. Name those of all tasks, classes=[task.classes for task in "
                    "stream.tasks], or one number for every head."
                )


def _check_outputs(method: Method, stream: Stream, output: Any) -> None:
    """Refuse outputs for two inputs of which the cross entropy with the classes of a task cannot be taken."""
    if not isinstance(output, Tensor):
        if not isinstance(getattr(output, "loss", None), Tensor):
            _refuse_output(stream.tasks[0], f"a {type(output).__name__}")
        return
    if not output.is_floating_point() or output.ndim != 2 or len(output) != 2:
        _refuse_output(stream.tasks[0], f"{list(output.shape)} of {output.dtype}")
    for task, width in zip(stream.tasks, _widths(method, stream, output.shape[1]), strict=True):
        if width is not None and width < task.classes:
            raise ValueError(
                f"task {task.name!r} has {task.classes} classes, and the network's output for it {width}: the cross "
                "entropy needs one for each. Give its head more outputs, MultiHead(backbone, features, [task.classes "
                "for task in stream.tasks]), or the method a loss=."
            )


def _refuse_output(task: Task, found: str) -> None:
    raise ValueError(
        f"task {task.name!r}: for 2 inputs the network puts out {found}; the cross entropy needs [2, {task.classes}], "
        "a floating-point number for each class. Return the logits, or give the method a loss=, a function of output "
        "and batch."
    )


def _widths(method: Method, stream: Stream, shown: int) -> list[int | None]:
    """How many outputs every task has, None where that is not known yet; ``shown`` is what the network puts out now."""
    several = [m for m in method.model.modules() if isinstance(getattr(m, "heads", None), nn.ModuleList)]
    if method.layers.task_heads is None:  # one head for all tasks; a method of the user's may let it grow
        return [shown, *[shown if type(method) in METHODS.values() else None] * (len(stream) - 1)]
    sizes = [_size(several[0], t) for t in range(len(stream))] if len(several) == 1 else []
    now = method.layers.task_heads.selected
    if now < len(sizes) and sizes[now] == shown:  # the output is that of the head
        return sizes
    return [shown if t == now else None for t in range(len(stream))]


def _size(module: Any, task: int) -> int | None:
    """The outputs of a head of a multi-head module, None where that is not known yet."""
    if task < len(module.heads):
        size = getattr(module.heads[task], "out_features", None)
        return size if isinstance(size, int) else None
    if not isinstance(module, MultiHead):
        return None
    return module.classes if isinstance(module.classes, int) else module.classes[task]


def _lacks_heads(model: nn.Module) -> bool:
    """Whether a network has to be told its first task before it can answer."""
    heads = [getattr(module, "heads", None) for module in model.modules()]
    return any(isinstance(some, nn.ModuleList) and len(some) == 0 for some in heads)


def _try_forward(method: Method, task: Task, x: Tensor, unlike: str) -> Any:
    """What the network puts out for two inputs; refused where it does not take them, with the layer that stopped it.

    Nothing changes.
    """
    model, entered = method.model, [("", "")]
    names = {module: name for name, module in model.named_modules()}

    def enter(module: nn.Module, inputs: Any) -> None:
        if module in names and not any(module.children()):
            given = [str(list(value.shape)) for value in inputs if isinstance(value, Tensor)]
            entered.append((f"'{names[module]}', {module},", " and ".join(given)))

    hook = register_module_forward_pre_hook(enter)
    try:
        with torch.no_grad(), in_mode(model, False), untouched_randomness(), untouched_buffers(model):
            return method.forward(model, (torch.cat([x, x]), torch.zeros(2, dtype=torch.long, device=x.device)))
    except Exception as error:  # whatever the user's network raises
        layer, given = entered[-1]
        where = f" {layer} was given {given}." if given else ""
        raise ValueError(
            f"task {task.name!r}: its inputs are {list(x.shape[1:])} of {x.dtype}{unlike}, and the network does not "
            f"take them ({in_a_line(error)}).{where} Give it inputs that it is made for, or a network made for these."
        ) from error
    finally:
        hook.remove()
        method.replicas.reshard(model)
