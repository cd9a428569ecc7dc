"""An epoch of AlexNet, training and validation, beside the same epoch computed plainly.

Plain is what the network was before it was made fast: NCHW maps, ReLU before dropout and pooling, and the allocator of
the C library as it is. Each way is a process of its own, since the allocator belongs to a process. They take turns,
epoch by epoch, on the same data with the same random numbers, so the losses agree up to rounding as it grows.
"""

import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from codecl.allocator import keep_freed_memory
from codecl.benchmarks.splits import CIFAR
from codecl.methods import Method
from codecl.networks import AlexNet, MultiHead
from codecl.training.engine import Trainer
from codecl.training.plan import Plan
from codecl.training.stream import Stream, Task, Tensors

TRAIN, VALIDATION = 4750, 250
"""The images of a task of Split CIFAR-100."""


class PlainAlexNet(AlexNet):
    """The same layers, one operation after the other as the network is described."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.light(F.relu(self.bn1(self.conv1(x)))), 2)
        x = F.max_pool2d(self.light(F.relu(self.bn2(self.conv2(x)))), 2)
        x = F.max_pool2d(self.heavy(F.relu(self.bn3(self.conv3(x)))), 2)
        x = self.heavy(F.relu(self.bn4(self.fc1(x.flatten(1)))))
        y: Tensor = self.heavy(F.relu(self.bn5(self.fc2(x))))
        return y


WAYS = {"plain": PlainAlexNet, "codecl": AlexNet}


def measure(rounds: int, train: int = TRAIN, validation: int = VALIDATION) -> list[dict[str, object]]:
    """CPU seconds of an epoch on one thread; the first epoch warms up."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for way in WAYS:
        pipes[way], far = context.Pipe()
        processes.append(context.Process(target=_run, args=(way, rounds + 1, train, validation, far), daemon=True))
        processes[-1].start()
        far.close()
    epochs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(rounds + 1):
        for way, pipe in pipes.items():
            pipe.send("go on")
            epochs[way].append(pipe.recv())
    for process in processes:
        process.join()
    return [_row(way, epochs) for way in WAYS]


def _row(way: str, epochs: dict[str, list[dict[str, float]]]) -> dict[str, object]:
    seconds = {name: [epoch["seconds"] for epoch in of[1:]] for name, of in epochs.items()}
    first, last = epochs[way][0], epochs[way][-1]
    return {
        "epoch": way,
        "seconds, least": round(min(seconds[way]), 2),
        "median": round(statistics.median(seconds[way]), 2),
        "times faster, least": min(seconds["plain"]) / min(seconds[way]),
        "median of rounds": statistics.median(a / b for a, b in zip(seconds["plain"], seconds[way], strict=True)),
        "loss, first epoch": f"{first['loss']:.5f}",
        "last": f"{last['loss']:.5f}",
        "validation loss": f"{last['validation_loss']:.5f}",
    }


def _run(way: str, epochs: int, train: int, validation: int, pipe: Connection) -> None:
    """Learn one task; every epoch waits for its turn, and is told of when it is over."""
    torch.set_num_threads(1)
    if way == "codecl":
        keep_freed_memory()
    began = 0.0

    def start() -> None:
        nonlocal began
        pipe.recv()
        began = time.process_time()

    def observe(event: dict[str, Any]) -> None:
        if event["event"] == "epoch":
            found = {"seconds": time.process_time() - began}
            pipe.send(found | {name: event[name] for name in ("loss", "validation_loss")})
            if event["epoch"] < epochs:
                start()

    trainer = _trainer(way, epochs, train, validation, observe)
    start()
    trainer.run()


def _trainer(way: str, epochs: int, train: int, validation: int, observe: Any) -> Trainer:
    torch.manual_seed(0)
    model = MultiHead(WAYS[way](), AlexNet.features, 10)
    parts = [_images(count, seed) for seed, count in enumerate((train, validation, 2))]
    stream = Stream("CIFAR-100-shaped", [Task("first", 10, *parts)])
    return Trainer(Method(model), stream, Plan(epochs=epochs, rule="annealed"), None, (observe,))


def _images(count: int, seed: int) -> Tensors:
    """uint8 images, each of ten classes about a picture of its own."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator)
    pictures = torch.randint(64, 192, (10, 3, 32, 32), generator=torch.Generator().manual_seed(0))
    noise = torch.randint(-64, 64, (count, 3, 32, 32), generator=generator)
    return Tensors((pictures[labels] + noise).to(torch.uint8), labels, CIFAR)
