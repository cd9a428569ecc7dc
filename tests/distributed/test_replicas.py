"""Two processes with half of every batch each learn what one process learns from whole batches."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from codecl import Method
from codecl.method.replicas import Replicas
from codecl.method.watch import ProtectionWarning
from codecl.methods import METHODS
from tests.distributed import worker
from tests.distributed.processes import States, on_two, tensors

pytestmark = pytest.mark.slow

SETTINGS: dict[str, dict[str, Any]] = {
    "code-cl": {"free_dims": 4, "overlap": 0.1, "samples": 32},
    "gpm": {"threshold": 0.9, "samples": 32},
    "hat": {"smax": 50.0},
    "ewc": {"strength": 10.0},
    "er": {"memory": 20, "replay": 7},
    "a-gem": {"memory_per_class": 3, "reference": 5},
    "dfgp": {"mixup": 1.0, "eta": 0.5, "rho": 0.3, "samples": 32},
    "owm": {"clip": 0.5},
}


def make_case(method: str, optimizer: str = "sgd", network: str = "mlp", **more: bool) -> dict[str, Any]:
    chosen = {"method": method, "settings": SETTINGS.get(method, {}), "optimizer": optimizer, "network": network}
    return chosen | {"accumulate": False, "trainer": False, "uneven": False, "decays": False} | more


OWN = {"own_share": 0.99, "after": "effective", "samples": 32}
CASES = {method: make_case(method) for method in METHODS} | {
    "code-cl with weights of a task's own": make_case("code-cl") | {"settings": OWN},
    "code-cl with momentum, decay and clipping": make_case("code-cl", "momentum"),
    "code-cl with AdamW": make_case("code-cl", "adamw"),
    "code-cl on a convolution": make_case("code-cl", network="cnn"),
    "code-cl with accumulation": make_case("code-cl", accumulate=True),
    "code-cl with a term on the weights": make_case("code-cl", decays=True),
    "er with momentum, decay and clipping": make_case("er", "momentum"),
    "code-cl with a layer that one process calls": make_case("code-cl", network="branch"),
    "owm on a convolution": make_case("owm", network="cnn"),
    "code-cl in the trainer": make_case("code-cl", trainer=True),
    "er in the trainer": make_case("er", trainer=True),
    "a-gem in the trainer": make_case("a-gem", trainer=True),
    "dfgp in the trainer": make_case("dfgp", trainer=True),
    "owm in the trainer": make_case("owm", trainer=True),
    "multitask in the trainer": make_case("multitask", trainer=True),
}


UNEVEN = {"code-cl on uneven loaders": make_case("code-cl", uneven=True)}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> States:
    """For each of two processes, the states at the end of every case."""
    return on_two("tests.distributed.worker", CASES | UNEVEN, tmp_path_factory.mktemp("distributed") / "out")


@pytest.mark.parametrize("name", CASES | UNEVEN)
def test_both_know_the_same(name: str, both: States) -> None:
    first, second = (states[name] for states in both)
    for (place, a), (_, b) in zip(tensors(first), tensors(second), strict=True):
        assert torch.equal(a, b), f"the processes differ at {place}"


@pytest.mark.filterwarnings("ignore:the gradient of .* is more than")
@pytest.mark.parametrize("name", CASES)
def test_both_learn_what_one_learns_alone(name: str, both: States) -> None:
    alone, first = worker.learn(CASES[name], 0, 1), both[0][name]
    for place, value in alone["model"].items():
        torch.testing.assert_close(first["model"][place], value, rtol=0, atol=1e-8, msg=place)


def test_a_method_that_cannot_is_refused_by_name(one_process: dist.ProcessGroup) -> None:
    class Mine(METHODS["gpm"]):  # type: ignore[misc]
        name = "mine"
        distributed = False

    replicas = Replicas(one_process)
    replicas.group = one_process  # as if there were others
    with pytest.raises(ValueError, match=r"^mine draws or keeps samples"):
        replicas.check(Mine(worker.make_model("mlp")))


@pytest.mark.parametrize("method", ["er", "owm", "dfgp", "a-gem"])
def test_processes_that_no_longer_step_are_not_waited_for(method: str, one_process: dist.ProcessGroup) -> None:
    learner = METHODS[method](worker.make_model("mlp"), **SETTINGS[method])
    learner.replicas.group = one_process  # as if there were others
    batches = worker.make_batches(0, "mlp")[:2]
    learner.begin_task(0, batches)
    net = learner.replicate()
    optimizer = worker.make_optimizer("sgd", learner.model.parameters())
    learner.guard(optimizer)

    def learn() -> None:
        for x, y in learner.watch(batches):
            torch.nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()

    with net.join(), pytest.raises(RuntimeError, match=r"within net.join.. some processes no longer step"):
        learn()


def learning_on_several(method: Method, group: dist.ProcessGroup, task: int) -> nn.Module:
    """What a method trains in a task, as if there were other processes."""
    method.replicas.group = group
    for t in range(task + 1):
        batches = worker.make_batches(t, "mlp")[:2]
        method.begin_task(t, batches)
        if t < task:
            method.end_task(batches)
    return method.replicate()


def test_unused_parameters_are_looked_for_where_there_may_be_some(one_process: dist.ProcessGroup) -> None:
    for task in (0, 2):  # heads of earlier tasks do not learn
        net = learning_on_several(METHODS["code-cl"](worker.make_model("mlp")), one_process, task)
        assert not net.find_unused_parameters
    assert learning_on_several(METHODS["multitask"](worker.make_model("mlp")), one_process, 2).find_unused_parameters
    branching = METHODS["code-cl"](worker.make_model("branch"))
    assert learning_on_several(branching, one_process, 1).find_unused_parameters
    assert not branching.replicate(find_unused_parameters=False).find_unused_parameters


@pytest.mark.parametrize("decays", [False, True])
@pytest.mark.parametrize("passes", [1, 3])
def test_a_step_asks_the_others_once_unless_there_were_several_passes(
    passes: int, decays: bool, one_process: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = METHODS["gpm"](worker.make_model("mlp"), threshold=0.9, samples=32)
    net = learning_on_several(method, one_process, 1)
    optimizer = worker.make_optimizer("sgd", method.model.parameters())
    method.guard(optimizer)
    asked = Counter[str]()

    def count(name: str) -> None:
        real = getattr(dist, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            asked[name] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(dist, name, counted)

    count("all_reduce")
    count("all_gather_object")
    for strange in (decays, False):  # it is projected after the first step, whatever comes
        optimizer.zero_grad()
        for x, y in worker.make_batches(1, "mlp")[:passes]:
            torch.nn.functional.cross_entropy(net(x), y).backward()
        if strange:
            for weight in method.weights.values():
                assert weight.parameter.grad is not None
                weight.parameter.grad += 0.1 * weight.parameter.detach()
        with pytest.warns(ProtectionWarning, match="is more than the loss") if strange else nullcontext():
            optimizer.step()
    assert (asked["all_reduce"], asked["all_gather_object"]) == (2, 0 if passes == 1 else 1 if decays else 2)


def test_a_method_that_was_not_told_of_other_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 4)
    with pytest.raises(RuntimeError, match="one of 4 processes"):
        METHODS["gpm"](worker.make_model("mlp"))
    METHODS["gpm"](worker.make_model("mlp"), group="alone").begin_task(0)


def test_a_group_must_be_one() -> None:
    with pytest.raises(TypeError, match="group must be a process group"):
        METHODS["gpm"](worker.make_model("mlp"), group=2)


def test_without_a_group_the_model_is_trained_itself() -> None:
    method = METHODS["gpm"](worker.make_model("mlp"))
    with pytest.raises(RuntimeError, match="after begin_task"):
        method.replicate()
    method.begin_task(0)
    assert method.replicate() is method.model
