"""A vision transformer learns handwritten digits two at a time: plain fine-tuning beside CODE-CL.

Five tasks, the digits 0 and 1, then 2 and 3, and so on, each with a head of its own. The training loop, with AdamW, is
a user's own; what CODE-CL adds to it are the lines marked with an arrow. Attention, embedding of the patches and the
layers between are protected; norms train in the first task only.

    python examples/vit_digits.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from codecl import CodeCL, Method, MultiHead
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


def train(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer) -> None:
    """An ordinary training loop: nothing in it knows of codecl."""
    model.train()
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    model.eval()
    x, y = data.tensors
    return 100 * float((model(x).argmax(1) == y).float().mean())


def learn_all(make_method: type[Method], **settings: object) -> list[list[float]]:
    """``rows[i][j]``: the accuracy on task j after learning task i."""
    model = network()
    method = make_method(model, **settings)  # ←
    rows: list[list[float]] = []
    stream = tasks()
    for t, (learn, _) in enumerate(stream):
        model.select(t)  # a new head
        loader = DataLoader(learn, batch_size=32, shuffle=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        method.guard(optimizer)  # ←
        method.begin_task(t, loader)  # ←
        train(model, loader, optimizer)
        method.end_task(loader)  # ←
        row = []
        for seen in range(t + 1):
            with method.task(seen):  # the network, and the head, as that task knows them
                row.append(accuracy(model, stream[seen][1]))
        rows.append(row)
    return rows


def main() -> None:
    torch.set_num_threads(1)  # the network is tiny: a second thread would only wait
    print(f"{TASKS} tasks of two digits: accuracy in % after the last one (and when it had just been learned)\n")
    print(f"{'':<14}" + "".join(f"{f'{2 * t}, {2 * t + 1}':<14}" for t in range(TASKS)) + "ACC     BWT")
    for label, make, settings in (
        ("fine-tuning", Method, {}),
        ("CODE-CL", CodeCL, {"aperture": 60.0, "free_dims": 16}),
    ):
        rows = learn_all(make, **settings)
        last, just = rows[-1], [row[-1] for row in rows]
        cells = "".join(f"{now:5.1f} ({then:5.1f}) " for now, then in zip(last, just, strict=True))
        backward = sum(now - then for now, then in zip(last[:-1], just[:-1], strict=True)) / (TASKS - 1)
        print(f"{label:<14}{cells}{sum(last) / TASKS:5.1f}  {backward:+6.1f}")
    print("\nACC: mean of the last accuracies. BWT: what earlier tasks lost (−) or gained (+) since they were learned.")


if __name__ == "__main__":
    main()
