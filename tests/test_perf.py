"""The speed benchmarks still run: what they set up is a method in its second task, and what they print is there."""

import pytest
import torch
from torch import nn

from codecl import CodeCL
from codecl.methods import METHODS
from perf import methods, wide
from perf.training_step import in_second_task

pytestmark = pytest.mark.slow


def test_a_method_stands_in_its_second_task_with_the_ranks_asked_for():
    model = nn.Sequential(nn.Conv2d(3, 4, 6), nn.Flatten(), nn.Linear(16, 8, bias=False))
    method = in_second_task(CodeCL(model), rank=5)
    assert method.tasks == [0, 1]
    assert method.is_learning
    assert [round(weight["rank"]) for weight in method.memory_summary().values()] == [108, 5]
    assert list(method.effective) == ["0.weight"]  # more than K inputs
    model(torch.randn(2, 3, 7, 7)).sum().backward()
    assert model[2].weight.grad.abs().max() > 0


def test_the_wide_layers_report_their_ranks(monkeypatch):
    monkeypatch.setattr(wide, "WIDTH", 32)
    monkeypatch.setattr(wide, "SAMPLES", 5)
    for row in wide.measure(repeat=1):
        assert all(1 <= int(rank) <= 32 for rank in row["ranks"].split("/"))


@pytest.mark.parametrize("name", ["code-cl", "gpm", "owm", "api"])
def test_the_rank_of_the_last_layer_is_told(name):
    method = METHODS[name](nn.Sequential(nn.Linear(6, 4, bias=False)))
    batches = [(torch.randn(3, 6), torch.tensor([0, 1, 2]))]
    method.begin_task(0, batches)
    method.end_task(batches)
    assert methods._rank(method) == ("6 of 6" if name == "owm" else "3 of 6")
