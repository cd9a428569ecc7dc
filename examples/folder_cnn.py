"""A residual CNN of one's own, and a folder of images, two classes at a time: plain fine-tuning beside CODE-CL.

    python examples/folder_cnn.py             pictures are drawn into a temporary folder
    python examples/folder_cnn.py FOLDER      your own: FOLDER/train/CLASS/*.png and FOLDER/test/CLASS/*.png (or jpg …)

Classes are taken in the order of their names, two for each task. The network and the training loop know nothing of
codecl; the lines marked with an arrow are what CODE-CL adds to them.
"""

import argparse
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from common import Rows, accuracies, compare, train
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from codecl import Method, MultiHead
from codecl.benchmarks.data.folder import ImageFolder

EPOCHS, SIZE, SEED = 8, 24, 0
DRAWN = {"train": 80, "test": 40}  # pictures of each class

Pen, Box, Ink = ImageDraw.ImageDraw, tuple[float, float, float, float], tuple[int, int, int]


def across(pen: Pen, box: Box, ink: Ink) -> None:
    for i in range(4):
        y = box[1] + i * (box[3] - box[1]) / 3
        pen.line((box[0], y, box[2], y), fill=ink, width=2)


def down(pen: Pen, box: Box, ink: Ink) -> None:
    for i in range(4):
        x = box[0] + i * (box[2] - box[0]) / 3
        pen.line((x, box[1], x, box[3]), fill=ink, width=2)


def cross(pen: Pen, box: Box, ink: Ink) -> None:
    pen.line(box, fill=ink, width=3)
    pen.line((box[0], box[3], box[2], box[1]), fill=ink, width=3)


def plus(pen: Pen, box: Box, ink: Ink) -> None:
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    pen.line((x, box[1], x, box[3]), fill=ink, width=3)
    pen.line((box[0], y, box[2], y), fill=ink, width=3)


KINDS: dict[str, Callable[[Pen, Box, Ink], None]] = {
    "across": across,
    "down": down,
    "circle": lambda pen, box, ink: pen.ellipse(box, fill=ink),
    "square": lambda pen, box, ink: pen.rectangle(box, fill=ink),
    "cross": cross,
    "plus": plus,
    "frame": lambda pen, box, ink: pen.rectangle(box, outline=ink, width=2),
    "ring": lambda pen, box, ink: pen.ellipse(box, outline=ink, width=2),
}


def draw_pictures(folder: Path) -> None:
    """Of eight kinds, at random places, in random light colours on dark ones, with noise over them."""
    chance = random.Random(SEED)
    for name, draw in KINDS.items():
        for part, count in DRAWN.items():
            (folder / part / name).mkdir(parents=True)
            for i in range(count):
                light, dark = (tuple(chance.randrange(low, low + 96) for _ in range(3)) for low in (160, 0))
                picture, side = Image.new("RGB", (SIZE, SIZE), dark), chance.uniform(0.45, 0.7) * SIZE
                left, top = (chance.uniform(1, SIZE - side - 1) for _ in range(2))
                draw(ImageDraw.Draw(picture), (left, top, left + side, top + side), light)
                noise = Image.frombytes("RGB", picture.size, chance.randbytes(3 * SIZE * SIZE))
                Image.blend(picture, noise, 0.15).save(folder / part / name / f"{i:03}.png")


def tasks(folder: Path) -> list[tuple[str, TensorDataset, TensorDataset]]:
    """Name, training and test part of every task. Small pictures are best read once and kept."""
    names = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
    found = []
    for pair in (names[i : i + 2] for i in range(0, len(names) - 1, 2)):
        parts = [_read(ImageFolder(folder / part, SIZE, pair)) for part in ("train", "test")]
        found.append((" or ".join(pair), *parts))
    return found


def _read(images: ImageFolder) -> TensorDataset:
    x, y = zip(*(images[i] for i in range(len(images))), strict=True)
    return TensorDataset(torch.stack(x) * 2 - 1, torch.tensor(y))


class Block(nn.Module):
    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=2, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(4, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(4, channels)
        self.shortcut = nn.Conv2d(channels_in, channels, 1, stride=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return (y + self.shortcut(x)).relu()


class Network(nn.Sequential):
    """Three residual blocks, each of which halves the picture; then the mean over what is left of it."""

    features = 32

    def __init__(self) -> None:
        super().__init__(Block(3, 16), Block(16, 32), Block(32, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def learn_all(
    stream: list[tuple[str, TensorDataset, TensorDataset]], make_method: type[Method], **settings: object
) -> Rows:
    """``rows[i][j]``: the accuracy on task j after learning task i."""
    torch.manual_seed(SEED)
    model = MultiHead(Network(), Network.features, classes=2, bias=True)
    method = make_method(model, **settings)  # ←
    rows: Rows = []
    for t, (name, learn, _) in enumerate(stream):
        model.select(t)  # a new head
        loader = DataLoader(learn, batch_size=16, shuffle=True)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        method.guard(optimizer)  # ←
        method.begin_task(name, loader)  # ←
        train(model, loader, optimizer, EPOCHS)
        method.end_task(loader)  # ←
        rows.append(accuracies(method, [test for _, _, test in stream[: t + 1]]))
    return rows


def main(folder: str | None = None) -> None:
    with TemporaryDirectory() as drawn:
        if folder is None:
            draw_pictures(Path(drawn))
        stream = tasks(Path(folder or drawn))
    compare([name for name, _, _ in stream], partial(learn_all, stream), {"aperture": 8.0, "free_dims": 16})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="of your own images")
    main(parser.parse_args().folder)
