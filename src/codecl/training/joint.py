"""Several tasks as one, for methods that learn all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from codecl.training.stream import Batch, Part


@dataclass(frozen=True, eq=False)
class Together:
    """The parts of all tasks, one after the other; batches ``(x, y, tasks)`` say which task each input is of."""

    parts: Sequence[Part]

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def take(self, indices: Tensor) -> Batch:
        ends = torch.tensor([len(part) for part in self.parts]).cumsum(0)
        tasks = torch.bucketize(indices, ends, right=True)
        taken, places = [], []
        for t in sorted(set(tasks.tolist())):
            of_task = torch.nonzero(tasks == t).flatten()
            taken.append(self.parts[t].take(indices[of_task] - ends[t] + len(self.parts[t])))
            places.append(of_task)
        back = torch.cat(places).argsort()
        x, y = (torch.cat(values)[back] for values in zip(*taken, strict=True))
        return x, y, tasks
