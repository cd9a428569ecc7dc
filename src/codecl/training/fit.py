"""Whether a model can learn from a stream, asked before anything is computed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from codecl.attach.patching import in_mode, untouched_buffers
from codecl.methods import Method
from codecl.randomness import untouched_randomness
from codecl.training.plan import Plan
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
        if isinstance(x, Tensor) and (x.shape[1:], x.dtype) != (first.shape[1:], first.dtype):
            _try_forward(method, task, x.to(plan.device))
        for name in alone:
            size = plan.batch_size if name == "train" else plan.evaluation_batch
            if min(len(getattr(task, name)), size) < 2:
                raise ValueError(
                    f"task {task.name!r}: the model's batch norm needs two inputs in a batch; its {name} part has "
                    f"{len(getattr(task, name))}, in batches of {size}."
                )


def _try_forward(method: Method, task: Task, x: Tensor) -> None:
    """Refuse inputs that differ from those of the first task if the network does not take them; nothing changes."""
    try:
        with torch.no_grad(), in_mode(method.model, False), untouched_randomness(), untouched_buffers(method.model):
            method.forward(method.model, (torch.cat([x, x]), torch.zeros(2, dtype=torch.long, device=x.device)))
    except Exception as error:  # whatever the user's network raises
        raise ValueError(
            f"task {task.name!r}: its inputs are {list(x.shape[1:])} of {x.dtype}, unlike those of the first task, and "
            f"the network does not take them ({type(error).__name__}: {error})."
        ) from error
