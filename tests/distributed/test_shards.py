"""Two processes with half of the rows and half of every batch each learn what one learns from whole ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

from codecl import GPM, CodeCL, Method
from codecl.attach import UncoveredWeights
from codecl.methods import METHODS
from tests.distributed import shards_worker as worker
from tests.distributed.processes import States, on_two, tensors

pytestmark = pytest.mark.slow

SUPPORTED = {"code-cl", "gpm", "sgp", "trgp", "trgp-sd", "finetune"}
SETTINGS: dict[str, dict[str, Any]] = {
    "code-cl": {"free_dims": 4, "overlap": 0.1, "samples": 32},
    "gpm": {"threshold": 0.9, "samples": 32},
}
OWN = {"own_share": 0.99, "after": "effective", "samples": 32}
TASK = [(torch.randn(8, 24).double(), torch.randint(0, 3, (8,))) for _ in range(2)]


def make_case(method: str, network: str = "mlp", optimizer: str = "sgd", **more: bool) -> dict[str, Any]:
    chosen = {"method": method, "settings": SETTINGS.get(method, {}), "network": network, "optimizer": optimizer}
    return chosen | {"accumulate": False, "decay": False, "resume": False, "shards": True} | more


CASES = {
    "finetune": make_case("finetune"),
    "gpm": make_case("gpm", "one head"),
    "sgp": make_case("sgp"),
    "trgp": make_case("trgp"),
    "trgp-sd": make_case("trgp-sd", "one head"),
    "code-cl": make_case("code-cl", accumulate=True),
    "code-cl with momentum, decay and clipping": make_case("code-cl", "one head", "momentum"),
    "code-cl with AdamW": make_case("code-cl", "one head", "adamw"),
    "code-cl, resumed within a task": make_case("code-cl", resume=True),
    "code-cl with weights of a task's own": make_case("code-cl", resume=True) | {"settings": OWN},
    "gpm on a vision transformer": make_case("gpm", "vit"),
    "code-cl on a vision transformer": make_case("code-cl", "vit", resume=True),
    "code-cl on an embedding and a packed attention": make_case("code-cl", "text"),
    "gpm with gradients that nothing has projected": make_case("gpm", "one head", decay=True),
}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> States:
    """For each of two processes, the states at the end of every case."""
    return on_two("tests.distributed.shards_worker", CASES, tmp_path_factory.mktemp("shards") / "out")


@pytest.mark.parametrize("name", CASES)
def test_shards_learn_what_the_whole_learns(name: str, both: States) -> None:
    alone, (first, second) = worker.learn(CASES[name] | {"shards": False}, 0, 1), (states[name] for states in both)
    for (place, a), (_, b) in zip(tensors(first), tensors(second), strict=True):
        assert torch.equal(a, b), f"the processes differ at {place}"
    for part in ("model", "answers", "exported"):  # bases may be turned, and what is learned along them
        for (place, a), (_, b) in zip(tensors(first[part]), tensors(alone[part]), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-9, msg=f"{part}{place}")
    for asked, exported in zip(first["answers"], first["exported"], strict=True):
        torch.testing.assert_close(asked, exported, rtol=0, atol=1e-12)
    if CASES[name]["method"] == "code-cl":
        learned = "B" if "own_share" in CASES[name]["settings"] else "M"
        freed = [change[learned] for task in first["method"]["effective"] for change in task.values()]
        assert any(bool(value.any()) for value in freed), "nothing was freed, so nothing of it was tested"
    assert first["warned"] == second["warned"] == alone["warned"]
    assert bool(first["warned"]) == CASES[name]["decay"]


def sharded(model: nn.Module | None = None, **options: Any) -> nn.Module:
    return fully_shard(worker.OneHead().double() if model is None else model, **options)


@pytest.mark.parametrize("name", METHODS)
def test_methods_learn_from_shards_or_are_refused_by_name(name: str, one_process: dist.ProcessGroup) -> None:
    assert METHODS[name].sharded == (name in SUPPORTED)
    model = fully_shard(worker.make_model("mlp"))
    if name in SUPPORTED:
        METHODS[name](model).begin_task(0, TASK)
    else:
        with pytest.raises(TypeError, match=rf"in shards .fully_shard., and {name} cannot learn from shards"):
            METHODS[name](model)


def test_a_method_of_ones_own_says_itself_that_it_can(one_process: dist.ProcessGroup) -> None:
    class Mine(GPM):
        name = "mine"

    class Seen(Mine):
        sharded = True

    with pytest.raises(TypeError, match="mine cannot learn from shards"):
        Mine(sharded(), heads=["head"])
    Seen(sharded(), heads=["head"]).begin_task(0, TASK)


def test_shards_that_are_no_rows_are_refused(one_process: dist.ProcessGroup) -> None:
    model = sharded(shard_placement_fn=lambda p: Shard(p.ndim - 1))
    with pytest.raises(TypeError, match=r"'gate.weight' is cut as .*dim=1.*shards must be rows"):
        GPM(model, heads=["head"])


def test_parameters_that_nobody_averages_are_refused(one_process: dist.ProcessGroup) -> None:
    model = worker.OneHead().double()
    fully_shard(model.body)
    with pytest.raises(TypeError, match=r"'gate.weight' is not in shards while other parameters are"):
        GPM(model, heads=["head"])


def test_shards_of_other_processes_than_the_group_are_refused(
    one_process: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist.device_mesh.DeviceMesh, "size", lambda self, mesh_dim=None: 4)
    with pytest.raises(ValueError, match="in shards on 4 processes, and group= has 1"):
        GPM(sharded(), heads=["head"])


def test_what_is_cut_after_the_method_was_attached_is_refused(one_process: dist.ProcessGroup) -> None:
    method = GPM(worker.OneHead().double(), heads=["head"])
    fully_shard(method.model)
    with pytest.raises(RuntimeError, match="fully_shard was called after the method was attached"):
        method.begin_task(0, TASK)


def test_narrow_copies_of_shards_are_refused(one_process: dist.ProcessGroup) -> None:
    model = sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    method = GPM(model, heads=["head"], forward=lambda m, batch: m(batch[0].bfloat16()))
    with pytest.raises(TypeError, match=r"weight' is torch.float64 .* as torch.bfloat16 .* without mp_policy"):
        method.begin_task(0, TASK)


def test_normalised_and_tied_weights_are_refused_in_shards(one_process: dist.ProcessGroup) -> None:
    normed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(24, 8)), nn.Linear(8, 3)).double()
    with pytest.raises(TypeError, match=r"'0.parametrizations.weight.original1' is normalised by its layer"):
        GPM(sharded(normed), heads=["1"])
    tied = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 9, bias=False)).double()
    tied[1].weight = tied[0].weight
    with pytest.raises(UncoveredWeights, match="whose shards would have to be projected on both sides"):
        GPM(sharded(tied))


def test_a_task_is_shown_to_all_processes_or_to_none(one_process: dist.ProcessGroup) -> None:
    method = GPM(sharded(), heads=["head"])
    method.begin_task(0, TASK)
    method.end_task(TASK)
    with pytest.raises(ValueError, match="a model in shards shows one task on all processes"), method.task("auto"):
        pass
    assert method.predict(TASK[0]).task.tolist() == [0] * 8


def test_a_model_in_shards_is_exported_into_a_plain_one(one_process: dist.ProcessGroup) -> None:
    method = CodeCL(sharded(), heads=["head"])
    method.begin_task(0, TASK)
    method.end_task(TASK)
    with pytest.raises(TypeError, match="exported into a plain one that you make"):
        method.export(0)
    with pytest.raises(TypeError, match="into= takes another model, without shards"):
        method.export(0, into=sharded())
    with pytest.raises(ValueError, match=r"into= is not of the architecture of the model: (?s:.*)Missing key"):
        method.export(0, into=nn.Linear(24, 3))


def test_a_whole_model_can_be_exported_into_another(one_process: dist.ProcessGroup) -> None:
    method = Method(worker.OneHead().double(), heads=["head"])
    method.begin_task(0, TASK)
    method.end_task(TASK)
    into = worker.OneHead().double()
    assert method.export(0, into=into) is into
    assert torch.equal(into(TASK[0][0]), method.model(TASK[0][0]))


def test_shards_are_as_they_were_after_detach(one_process: dist.ProcessGroup) -> None:
    model = sharded()
    before = {name: value.full_tensor() for name, value in model.state_dict().items()}
    method = CodeCL(model, heads=["head"])
    method.begin_task(0, TASK)
    method.end_task(TASK)
    method.begin_task(1, TASK)
    method.detach()
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(before[name], value.full_tensor()) for name, value in model.state_dict().items())
