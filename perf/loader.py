"""What a batch of images costs beside the training step that uses it."""

import torch

from codecl.benchmarks.splits import CIFAR
from codecl.training.stream import Tensors
from perf.timing import in_turn, ratio
from perf.training_step import BATCH, alexnet, training_step


def measure(repeat: int) -> list[dict[str, object]]:
    """Taking 64 of 4,750 uint8 images at random and normalising them, over a step of AlexNet under plain SGD."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (4750, 3, 32, 32), dtype=torch.uint8, generator=generator)
    part = Tensors(images, torch.zeros(4750, dtype=torch.int64), CIFAR)
    order = torch.randperm(4750, generator=generator)[:BATCH]
    seconds = in_turn({"batch": lambda: part.take(order), "step": training_step(alexnet(), None)}, repeat)
    return [{"a batch of images": "64 of 4,750, uint8", "over an AlexNet step": ratio(seconds, "batch", "step")}]
