"""What is measured without telling the task."""

import pytest
import torch

from codecl.errors import UsageError
from codecl.methods import CodeCL, Method
from codecl.networks import MLP, MultiHead
from codecl.runs.recipe import make_recipe
from codecl.runs.run import make_method
from codecl.training.engine import Trainer
from codecl.training.plan import Plan
from codecl.training.stream import Stream, Task, Tensors
from codecl.training.task_inference import TOGETHER, measure_inference

D, TASKS = 9, 3


def make_stream() -> Stream:
    """Each task's inputs lie in three dimensions of their own; two classes by the sign of the first."""
    tasks = []
    for t in range(TASKS):
        x = torch.zeros(120, D)
        x[:, 3 * t : 3 * t + 3] = torch.randn(120, 3, generator=torch.Generator().manual_seed(t))
        x += 0.05 * torch.randn(120, D, generator=torch.Generator().manual_seed(50 + t))
        y = (x[:, 3 * t] > 0).long()
        parts = [Tensors(x[some], y[some]) for some in (slice(60), slice(60, 80), slice(80, 120))]
        tasks.append(Task(f"plane {t}", 2, *parts))
    return Stream("planes", tasks)


def trained(make: type[Method], **settings: object) -> Trainer:
    torch.manual_seed(0)
    model = MultiHead(MLP((D, 16)), 16, [2] * TASKS, bias=True)
    trainer = Trainer(make(model, **settings), make_stream(), Plan(epochs=5, batch_size=20, lr=0.2))
    trainer.run()
    return trainer


@pytest.mark.parametrize(("make", "settings"), [(CodeCL, {"evidence": "auto", "samples": 20}), (Method, {})])
def test_it_is_what_asking_input_by_input_gives(make: type[Method], settings: dict[str, object]) -> None:
    trainer = trained(make, **settings)
    found = measure_inference(trainer)
    right, taken, by_heads = [], torch.zeros(TASKS, TASKS), 0
    for t, task in enumerate(trainer.stream.tasks):
        x, y = task.test.take(torch.arange(len(task.test)))[:2]
        hits = 0
        for i in range(len(y)):
            guess = int(trainer.method.infer_task(x[i : i + 1])[0])
            taken[t, guess] += 1
            trainer.model.eval()
            sureness = []
            for other in range(TASKS):
                with torch.no_grad(), trainer.method.task(other):
                    p = trainer.model(x[i : i + 1]).softmax(1)
                sureness.append(float((p * p.log()).sum()))
            by_heads += sureness.index(max(sureness)) == t
            with torch.no_grad(), trainer.method.task(guess):
                hits += guess == t and int(trainer.model(x[i : i + 1]).argmax()) == int(y[i])
        right.append(100 * hits / len(y))
    assert found["inferred"] == pytest.approx(sum(right) / TASKS)
    torch.testing.assert_close(torch.tensor(found["confusion"]), 100 * taken / 40)
    assert found["tasks_right"] == pytest.approx(100 * float(taken.diagonal().mean()) / 40)
    assert found["tasks_right_by_heads"] == pytest.approx(100 * by_heads / (40 * TASKS))
    assert found["together"] == TOGETHER


def test_stored_conceptors_tell_the_planes_apart() -> None:
    found = measure_inference(trained(CodeCL, evidence="auto", samples=20))
    assert found["evidence"] == "conceptors"
    assert found["tasks_right"] > 95
    assert found["tasks_right_together"] == 100
    assert found["inferred"] > 70


def test_conceptors_for_inference_see_more_than_the_method_asks_for() -> None:
    trainer = trained(CodeCL, evidence="auto", samples=20)
    assert sum(len(batch[1]) for batch in trainer._sample(0, "after")) == 60  # all there are, not 20
    assert [len(batch[1]) for batch in trainer._sample(0, "before")] == [20]


@pytest.mark.parametrize(
    ("method", "remedy"),
    [("finetune", "Choose a method that protects weights"), ("code-cl", r"CodeCL\(model, evidence='auto'\)")],
)
def test_a_network_with_one_head_is_refused_before_it_is_trained(method: str, remedy: str) -> None:
    recipe = make_recipe({"method": method, "benchmark": "permuted-mnist"}, {"infer_tasks": True})
    with pytest.raises(UsageError, match=f"^{method}: the task cannot be inferred: .*{remedy}"):
        make_method(recipe, make_stream())
    for changes in ({}, {"infer_tasks": True, "evidence": "auto"}):
        recipe = make_recipe({"method": "code-cl", "benchmark": "permuted-mnist"}, changes)
        assert make_method(recipe, make_stream()).name == "code-cl"
