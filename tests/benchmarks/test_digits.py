"""The embedded benchmark: real data, tasks that interfere."""

import pytest
import torch
from sklearn.datasets import load_digits

from codecl.benchmarks import digits
from codecl.runs.recipe import make_recipe
from codecl.runs.run import make_trainer
from codecl.training import metrics

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stream():
    return digits.stream()


def parts(task):
    return task.train, task.validation, task.test


def test_five_tasks_of_ten_classes(stream):
    assert len(stream) == 5
    for task in stream.tasks:
        assert [len(part) for part in parts(task)] == [1200, 200, 397]
        assert task.classes == 10
        for part in parts(task):
            assert part.inputs.shape == (len(part), 64)
            assert part.inputs.dtype == torch.float32
            assert part.labels.unique().tolist() == list(range(10))
            assert 0 <= part.inputs.min() < part.inputs.max() <= 1


def test_every_task_holds_every_digit_once(stream):
    """No example is in two parts: together they are the data set, each with its label, up to order and permutation."""
    data = load_digits()
    expected = sorted((tuple(sorted(row)), int(y)) for row, y in zip(data.data.tolist(), data.target, strict=True))
    for task in stream.tasks:
        inputs = (16 * torch.cat([part.inputs for part in parts(task)])).tolist()
        labels = torch.cat([part.labels for part in parts(task)]).tolist()
        assert sorted((tuple(sorted(row)), y) for row, y in zip(inputs, labels, strict=True)) == expected


def test_parts_do_not_overlap_and_are_the_same_in_every_task(stream):
    whole = torch.cat([part.inputs for part in parts(stream.tasks[0])])
    assert len(whole.unique(dim=0)) == len(torch.tensor(load_digits().data).unique(dim=0))
    for part in range(3):
        labels = [parts(task)[part].labels for task in stream.tasks]
        assert all(torch.equal(labels[0], other) for other in labels)


def test_permutations_differ_between_tasks_and_are_equal_in_every_run(stream):
    again = digits.stream()
    for one, two in zip(stream.tasks, again.tasks, strict=True):
        assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(parts(one), parts(two), strict=True))
    first = stream.tasks[0].train.inputs
    for t, task in enumerate(stream.tasks[1:], 1):
        x = task.train.inputs
        assert not torch.equal(first, x), t
        moved = sum(not torch.equal(first[:, i], x[:, i]) for i in range(64))
        assert moved > 40, f"task {t} moves {moved} of 64 pixels"
        assert torch.equal(first.sort(1).values, x.sort(1).values)  # the same pixels in another order
    assert len({task.train.inputs.numpy().tobytes() for task in stream.tasks}) == 5


def test_fine_tuning_forgets_and_code_cl_does_not(tmp_path):
    matrices = {}
    for method in ("finetune", "code-cl"):
        trainer = make_trainer(make_recipe({"method": method}, {}, epochs=12), tmp_path)
        matrices[method] = trainer.run().accuracy
    assert metrics.bwt(matrices["finetune"]) < -10
    assert metrics.bwt(matrices["code-cl"]) > -5
    assert min(metrics.learned(matrices["finetune"])) > 85  # it does learn
    assert min(metrics.learned(matrices["code-cl"])) > 80
    assert metrics.acc(matrices["code-cl"]) > metrics.acc(matrices["finetune"]) + 5
