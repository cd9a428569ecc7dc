"""Five tasks of two digits each in a loop of Accelerate: plain fine-tuning beside CODE-CL.

What CODE-CL adds to the loop are the lines marked with an arrow. ``save_state`` and ``load_state`` take the method with
them.

    pip install 'codecl[demo,integrations]'
    python examples/accelerate_digits.py
"""

import torch
from accelerate import Accelerator
from common import Rows, accuracies, compare
from torch import nn
from torch.utils.data import DataLoader
from vit_digits import network, tasks

from codecl import Method
from codecl.integrations.accelerate import register_for_checkpointing

TASKS, EPOCHS, SEED = 5, 8, 0


def learn_all(make_method: type[Method], **settings: object) -> Rows:
    """``rows[i][j]``: the accuracy on task j after learning task i."""
    accelerator = Accelerator(cpu=True)
    model = network()
    method = make_method(model, **settings)  # ←
    register_for_checkpointing(accelerator, method)  # ←
    rows: Rows = []
    stream = tasks()[:TASKS]
    for t, (learn, _) in enumerate(stream):
        model.select(t)  # a new head
        wrapped, optimizer, loader = accelerator.prepare(
            model,
            torch.optim.AdamW(model.parameters(), lr=2e-3),
            DataLoader(learn, batch_size=32, shuffle=True),
        )
        method.guard(optimizer)  # ←
        method.begin_task(t, loader)  # ←
        wrapped.train()
        for _ in range(EPOCHS):
            for x, y in loader:
                optimizer.zero_grad()
                accelerator.backward(nn.functional.cross_entropy(wrapped(x), y))
                accelerator.clip_grad_norm_([*wrapped.parameters(), *method.parameters()], 1.0)
                optimizer.step()
        method.end_task(loader)  # ←
        rows.append(accuracies(method, [test for _, test in stream[: t + 1]]))
    return rows


def main() -> None:
    compare([f"{2 * t}, {2 * t + 1}" for t in range(TASKS)], learn_all, {"aperture": 60.0, "free_dims": 16})


if __name__ == "__main__":
    main()
