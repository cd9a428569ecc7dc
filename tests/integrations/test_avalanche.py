"""Avalanche: as the plain loop, for any strategy. It needs torchvision: this runs where both are installed."""

import pytest
import torch
from torch import optim
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from codecl import GPM
from codecl.methods.owm import OWM
from tests.integrations import torchvision_operators
from tests.integrations.plain import (
    BATCH,
    TASKS,
    assert_equal,
    assert_held,
    assert_same,
    attach,
    dataset,
    learn_all,
    loader,
    network,
    outputs,
)

torchvision_operators.declare()
pytest.importorskip("avalanche")
pytestmark = pytest.mark.filterwarnings("ignore")

from avalanche.benchmarks import benchmark_from_datasets  # noqa: E402
from avalanche.benchmarks.utils import as_taskaware_classification_dataset  # noqa: E402
from avalanche.evaluation.metrics import accuracy_metrics  # noqa: E402
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin  # noqa: E402
from avalanche.training.supervised import Naive  # noqa: E402

from codecl.integrations.avalanche import Continual  # noqa: E402


def benchmark():
    def stream():
        return [as_taskaware_classification_dataset(with_targets(dataset(t))) for t in range(TASKS)]

    return benchmark_from_datasets(train=stream(), test=stream())


def with_targets(data):
    data.targets = data.tensors[1].tolist()
    return data


def strategy(model, optimizer, *plugins, metrics=()):
    return Naive(
        model=model, optimizer=optimizer, train_mb_size=BATCH, train_epochs=2, eval_mb_size=64,
        plugins=list(plugins), evaluator=EvaluationPlugin(*metrics, loggers=[]),
    )  # fmt: skip


def sgd(model):
    return optim.SGD(model.parameters(), lr=0.1)


def test_it_is_the_plain_loop():
    expected, kept = learn_all(sgd)
    model, seen = network(), []
    method = attach(model)
    naive = strategy(model, sgd(model), Continual(method))
    for experience in benchmark().train_stream:
        naive.train(experience, shuffle=False)
        seen.append(outputs(method, 0))
    assert_same(method, expected)
    assert_equal(seen, kept)
    assert_held(seen)


def test_an_experience_is_evaluated_as_its_task_knows_the_network():
    model = network()
    method = attach(model)
    naive = strategy(model, sgd(model), Continual(method), metrics=[accuracy_metrics(experience=True)])
    tasks = benchmark()
    for t, experience in enumerate(tasks.train_stream):
        naive.train(experience, shuffle=False, eval_streams=[tasks.test_stream])  # one not learned yet, too
        found = naive.eval(tasks.test_stream)
        for seen in range(t + 1):
            right = (outputs(method, seen).argmax(1) == dataset(seen).tensors[1]).float().mean().item()
            (value,) = [value for key, value in found.items() if key.endswith(f"Exp{seen:03d}")]
            assert value == pytest.approx(right)
    assert not torch.equal(outputs(method, 0).argmax(1), model(dataset(0).tensors[0]).argmax(1))


def test_it_works_beside_a_plugin_that_mixes_batches():
    model = network()
    method = GPM(model, heads=["head"], threshold=0.999999)
    naive = strategy(model, optim.Adam(model.parameters(), lr=0.01), ReplayPlugin(mem_size=24), Continual(method))
    seen = []
    for experience in benchmark().train_stream:
        naive.train(experience)
        seen.append(outputs(method, 0))
    assert_close(seen[-1], seen[0], rtol=0, atol=1e-3)
    assert (model(dataset(2).tensors[0]) - network()(dataset(2).tensors[0])).abs().max() > 0.2


def test_a_method_that_looks_at_batches_sees_them_and_how_far_the_task_is():
    settings = {"heads": ["head"], "alpha": 1.0, "alpha_end": 0.01}
    expected, method = OWM(alone := network(), **settings), OWM(together := network(), **settings)
    naive = strategy(together, sgd(together), Continual(method))
    expected.guard(optimizer := sgd(alone))
    for t, experience in enumerate(benchmark().train_stream):
        expected.begin_task(t, loader(t))
        for epoch in range(2):
            for x, y in expected.watch(loader(t), epoch, 2):
                optimizer.zero_grad()
                cross_entropy(alone(x), y).backward()
                optimizer.step()
        expected.end_task(loader(t))
        naive.train(experience, shuffle=False)
    for name, P in expected.memory.items():
        assert_close(method.memory[name], P)
    assert_close(together.state_dict(), alone.state_dict())


def test_another_model_is_refused():
    model = network()
    naive = strategy(model, sgd(model), Continual(attach(network())))
    with pytest.raises(ValueError, match="trains another model"):
        naive.train(benchmark().train_stream[0])
