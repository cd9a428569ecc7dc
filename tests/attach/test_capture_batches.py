"""The batches that inputs of weights are seen on: of every kind, as many as asked, and no trace in the random state."""

import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from codecl import CodeCL
from codecl.attach import take
from tests.attach.capture_cases import X, captured, square
from tests.layers.cases import normal, redrawn


def test_a_loader_that_shuffles_leaves_the_random_state():
    data = TensorDataset(normal(0, 20, 4), torch.arange(20))
    loader = DataLoader(data, batch_size=4, shuffle=True)
    states = torch.get_rng_state(), random.getstate()
    assert len(take(loader, 9)) == 3
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


class Keyed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x, scale=1.0):
        return self.fc(x * scale)


@dataclass
class Sample:
    """A batch that only its owner understands."""

    inputs: Tensor


BATCHES = {
    "tensor": ([X[:2], X[2:]], None),
    "tuple": ([(X[:2], torch.zeros(2)), (X[2:], torch.zeros(4))], None),
    "list": ([[X[:2], torch.zeros(2)], [X[2:], torch.zeros(4)]], None),
    "dict": ([{"x": X[:2] / 2, "scale": 2.0}, {"x": X[2:], "scale": torch.ones(())}], None),
    "forward": ([(0, {"deep": X})], lambda model, batch: model(batch[1]["deep"])),
    "object": ([Sample(X)], lambda model, batch: model(batch.inputs)),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_batches_of_every_kind(kind):
    batches, forward = BATCHES[kind]
    settings = {} if forward is None else {"forward": forward}
    taken = take(iter(batches), None)
    assert_close(captured(redrawn(Keyed()), taken, **settings)["fc.weight"], [square(X)])
    method = CodeCL(redrawn(Keyed()), **settings)
    method.begin_task(0)
    method.end_task(batches)
    assert method.memory["fc.weight"][0].rank == 4


@pytest.mark.parametrize(("samples", "batches"), [(1, 1), (4, 1), (5, 2), (9, 3), (100, 3), (None, 3)])
def test_whole_batches_until_there_are_enough_inputs(samples, batches):
    loader = [(torch.zeros(4, 2), torch.zeros(4)), {"a": torch.zeros(4, 2)}, torch.zeros(4, 2)]
    assert take(loader, samples) == loader[:batches]


def test_a_used_up_generator_is_named():
    loader = (X for _ in range(2))
    assert len(take(loader, None)) == 2
    with pytest.raises(ValueError, match="generator, it was used up before"):
        take(loader, None)
    with pytest.raises(ValueError, match="yielded no inputs"):
        take([torch.zeros(0, 4)], None)


@pytest.mark.parametrize("loader", [None, 3, "train"])
def test_what_is_not_a_loader_is_refused(loader):
    with pytest.raises(TypeError, match="any iterable of batches"):
        take(loader, None)
