"""A vision transformer learns handwritten digits two at a time: plain fine-tuning beside CODE-CL.

Five tasks, the digits 0 and 1, then 2 and 3, and so on, each with a head of its own. The training loop, with AdamW, is
a user's own; what CODE-CL adds to it are the lines marked with an arrow. Attention, embedding of the patches and the
layers between are protected; norms train in the first task only.

    python examples/vit_digits.py
"""

import torch
from common import Rows, accuracies, compare, train
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from codecl import Method, MultiHead
from codecl.networks import VisionTransformer

TASKS, EPOCHS, SEED = 5, 8, 0


def tasks() -> list[tuple[TensorDataset, TensorDataset]]:
    """Training and test part of every task: about 360 images of 8 × 8 pixels, of which every fifth is for the test."""
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    y = torch.tensor(digits.target)
    parts = []
    for t in range(TASKS):
        here = (y // 2 == t).nonzero().squeeze(1)
        test = torch.arange(len(here)) % 5 == 0
        parts.append(tuple(TensorDataset(x[of], y[of] % 2) for of in (here[~test], here[test])))
    return parts


def network() -> MultiHead:
    """16 patches of 2 × 2 pixels, two blocks of width 32."""
    torch.manual_seed(SEED)
    backbone = VisionTransformer(image_size=8, patch=2, width=32, depth=2, heads=4, mlp_ratio=2, channels=1)
    return MultiHead(backbone, backbone.features, classes=2, bias=True)


def learn_all(make_method: type[Method], **settings: object) -> Rows:
    """``rows[i][j]``: the accuracy on task j after learning task i."""
    model = network()
    method = make_method(model, **settings)  # ←
    rows: Rows = []
    stream = tasks()
    for t, (learn, _) in enumerate(stream):
        model.select(t)  # a new head
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
