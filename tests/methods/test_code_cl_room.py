"""CODE-CL with a budget: the memory of every layer keeps to its share of the room."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from codecl.methods import CodeCL
from codecl.networks import MLP, MultiHead

TASKS, D = 4, 10


def batches(task: int) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(task)
    x = torch.randn(64, D, generator=draw) @ torch.randn(D, D, generator=draw)
    return [(x[:32], x[:32, 0].gt(0).long()), (x[32:], x[32:, 0].gt(0).long())]


def make(**settings: object) -> CodeCL:
    torch.manual_seed(0)
    model = MultiHead(MLP((D, 12)), 12, [2] * TASKS, bias=True).double()
    return CodeCL(model, samples=None, **settings)  # type: ignore[arg-type]


def learn(method: CodeCL, tasks: int = TASKS) -> list[float]:
    """The capacity of the first layer after each task."""
    capacities = []
    for t in range(len(method.tasks), tasks):
        torch.manual_seed(t)  # a head is made when its task begins
        data = [(x.double(), y) for x, y in batches(t)]
        method.begin_task(t, data)
        optimizer = torch.optim.SGD(method.model.parameters(), lr=0.05)
        method.guard(optimizer)
        for x, y in data * 3:
            optimizer.zero_grad()
            nn.functional.cross_entropy(method.model(x), y).backward()
            optimizer.step()
        method.end_task(data)
        capacities.append(method.memory_summary()["backbone.hidden.0.weight"]["capacity"])
    return capacities


def test_each_of_the_expected_tasks_has_the_same_share() -> None:
    method = make(aperture=1e3, room=0.8, expected_tasks=TASKS)
    assert learn(method) == pytest.approx([0.2, 0.4, 0.6, 0.8], abs=1e-6)
    used = method.memory_summary()["backbone.hidden.0.weight"]["apertures"]
    assert len(used) == TASKS
    assert all(0 < a < 1e3 for a in used)


def test_without_a_number_of_tasks_each_takes_a_tenth_of_what_is_left() -> None:
    assert learn(make(aperture=1e3, room=1.0)) == pytest.approx([0.1, 0.19, 0.271, 0.3439], abs=1e-6)


def test_with_room_enough_the_aperture_is_the_given_one() -> None:
    plain, roomy = make(aperture=0.5), make(aperture=0.5, room=1.0, expected_tasks=1)
    assert learn(roomy) == learn(plain)
    for name, value in plain.model.state_dict().items():
        assert torch.equal(roomy.model.state_dict()[name], value)
    assert set(roomy.memory_summary()["backbone.hidden.0.weight"]["apertures"]) == {0.5}


def test_it_goes_on_from_its_state(tmp_path: Path) -> None:
    whole, half = (make(aperture=1e3, room=0.8, expected_tasks=TASKS) for _ in range(2))
    expected = learn(whole)
    learn(half, tasks=2)
    torch.save({"model": half.model.state_dict(), "method": half.state_dict()}, tmp_path / "half.pt")
    saved = torch.load(tmp_path / "half.pt", weights_only=True)
    resumed = make(aperture=1e3, room=0.8, expected_tasks=TASKS)
    resumed.model.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["method"])
    assert learn(resumed) == expected[2:]
    assert resumed.apertures_used == whole.apertures_used


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"room": 0}, "room must be a share"),
        ({"room": 1.5}, "room must be a share"),
        ({"room": 0.5, "expected_tasks": 0}, "expected_tasks must be 1 or more"),
        ({"room": 0.5, "gain": 0.9}, "gain must be 0 where room is given"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**settings)
