"""The speed benchmarks still run: what they set up is a method in its second task, and what they print is there."""

import pytest
import torch
from torch import nn

from codecl import CodeCL, Conceptor
from codecl.methods import METHODS
from perf import between_tasks, ddp, epoch, methods, published, switch, wide
from perf.training_step import BATCH, in_second_task

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
    batches = [(torch.eye(3, 6), torch.tensor([0, 1, 2]))]
    method.begin_task(0, batches)
    method.end_task(batches)
    assert methods._rank(method) == ("6 of 6" if name == "owm" else "3 of 6")


def test_both_ways_of_an_epoch_learn_alike():
    plain, ours = epoch.measure(rounds=1, train=12, validation=4)
    assert (plain["epoch"], ours["epoch"]) == ("plain", "codecl")
    assert plain["times faster, least"] == 1
    for name in ("loss, first epoch", "last", "validation loss"):
        assert float(ours[name]) == pytest.approx(float(plain[name]), rel=1e-3)
    assert float(ours["last"]) != float(ours["loss, first epoch"])


class Small(nn.Module):
    """Two layers for the images of the benchmarks, the first with directions to free."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 6, stride=13, bias=False), nn.BatchNorm2d(4, track_running_stats=False)
        self.last = nn.Linear(36, 10, bias=False)

    def forward(self, x):
        return self.last(self.norm(self.conv(x)).relu().flatten(1))


def test_the_published_way_takes_the_same_steps():
    torch.manual_seed(0)
    theirs, ours = Small(), Small()
    ours.load_state_dict(theirs.state_dict())
    step = published.published_step(in_second_task(CodeCL(theirs), rank=20))
    method = in_second_task(CodeCL(ours), rank=20)
    assert list(method.effective) == ["conv.weight"]
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.01)
    method.guard(optimizer)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, 3, 32, 32, generator=generator)
    y = torch.randint(0, 10, (BATCH,), generator=generator)
    before = [W.clone() for W in ours.parameters()]
    for _ in range(3):
        step()
        optimizer.zero_grad()
        nn.functional.cross_entropy(ours(x), y).backward()
        optimizer.step()
    for mine, its, old in zip(ours.parameters(), theirs.parameters(), before, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-6)
        if mine.ndim > 1:
            assert not torch.equal(mine, old)


def test_the_published_algebra_is_that_of_mild_conceptors():
    torch.manual_seed(0)
    X, Y = torch.randn(50, 6), torch.randn(50, 6)
    A, B = (published.conceptor(rows.mT @ rows / 50) for rows in (X, Y))
    a, b = (Conceptor.fit(rows, published.APERTURE) for rows in (X, Y))
    torch.testing.assert_close(published.join(A, B), (a | b).dense().float(), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(published.meet(A, B), (a & b).dense().float(), rtol=1e-3, atol=1e-3)


def test_both_ways_between_two_tasks_are_timed():
    found = published.between_tasks(Small(), lambda seed: torch.randn(8, 3, 32, 32))
    assert min(found.values()) > 0


def test_the_work_between_tasks_is_split(monkeypatch):
    monkeypatch.setattr(between_tasks, "SAMPLES", 8)
    (row,) = between_tasks.measure_alexnet(tasks=1)
    assert row["between tasks"] == "1 and 2"
    assert 0 < row["of it capture"] < row["seconds"] + 0.1


def test_switches_are_timed_at_each_number_of_tasks():
    rows = switch.measure(repeat=1, tasks=(1, 3))
    assert [row["tasks"] for row in rows] == [1, 3]
    assert all(row["switch ms"] > 0 and row["forward ms"] > 0 for row in rows)
    assert rows[0]["switch over the first"] == 1


def test_a_step_is_compared_on_one_process_and_on_two():
    one, two = ddp.measure(1, Small)
    assert (one["processes"], two["processes"]) == (1, 2)
    assert one["ratio"] > 0
    assert two["ratio"] > 0
