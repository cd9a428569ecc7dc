"""A vision transformer of ``timm`` learns five tasks of two digits each: plain fine-tuning beside CODE-CL.

The model starts from random weights, so that nothing is downloaded. What CODE-CL adds are the lines marked with an
arrow.

    pip install 'codecl[demo,timm]'
    python examples/timm_digits.py
"""

import timm
import torch
from common import Rows, accuracies, compare, train
from torch import nn
from torch.utils.data import DataLoader
from vit_digits import tasks

from codecl import Method

TASKS, EPOCHS, SEED = 5, 12, 0


def network() -> nn.Module:
    """16 patches of 2 × 2 pixels, two blocks of width 32."""
    torch.manual_seed(SEED)
    return timm.create_model(
        "vit_tiny_patch16_224",
        img_size=8,
        patch_size=2,
        in_chans=1,
        embed_dim=32,
        depth=2,
        num_heads=4,
        mlp_ratio=2,
        num_classes=2,
    )


def learn_all(make_method: type[Method], **settings: object) -> Rows:
    """``rows[i][j]``: the accuracy on task j after learning task i."""
    model = network()
    method = make_method(model, heads=["head"], added=["cls_token", "pos_embed"], **settings)  # ←
    rows: Rows = []
    stream = tasks()[:TASKS]
    for t, (learn, _) in enumerate(stream):
        loader = DataLoader(learn, batch_size=32, shuffle=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        method.guard(optimizer)  # ←
        method.begin_task(t, loader)  # ←
        train(model, loader, optimizer, EPOCHS)
        method.end_task(loader)  # ←
        rows.append(accuracies(method, [test for _, test in stream[: t + 1]]))
    return rows


def main() -> None:
    compare([f"{2 * t}, {2 * t + 1}" for t in range(TASKS)], learn_all, {"aperture": 60.0, "free_dims": 16})


if __name__ == "__main__":
    main()
