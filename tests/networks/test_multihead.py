"""MultiHead: growth, selection, order of parameters, initialisation, loading and copying."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from codecl.networks import MLP, MultiHead


def ones(head: nn.Linear) -> None:
    nn.init.ones_(head.weight)


def network(classes: int | list[int] = 3, tasks: int = 1, **options: object) -> MultiHead:
    net = MultiHead(MLP((6, 5)), 5, classes, **options)  # type: ignore[arg-type]
    net.select(tasks - 1)
    return net


def weight(net: MultiHead, task: int) -> torch.Tensor:
    return net.get_parameter(f"heads.{task}.weight")


def test_forward_is_the_selected_head_of_the_backbone() -> None:
    net, x = network(tasks=3), torch.randn(4, 6)
    for task in (2, 0, 1):
        net.select(task)
        assert net.selected == task
        assert_close(net(x), net.backbone(x) @ weight(net, task).T)


def test_head_zero_is_there_from_the_start() -> None:
    net = MultiHead(MLP((6, 5)), 5, 3)
    assert net.selected == 0
    assert len(net.heads) == 1
    assert net(torch.randn(2, 6)).shape == (2, 3)


def test_select_adds_the_heads_up_to_the_task_and_keeps_the_old_ones() -> None:
    net = network()
    first = net.heads[0]
    net.select(3)
    assert len(net.heads) == 4
    assert net.heads[0] is first
    net.select(1)
    assert len(net.heads) == 4


def test_heads_may_differ_in_size() -> None:
    net, x = network([2, 7, 4]), torch.randn(2, 6)
    for task, size in enumerate([2, 7, 4]):
        net.select(task)
        assert net(x).shape == (2, size)


def test_a_head_beyond_the_sequence_is_refused_and_nothing_changes() -> None:
    net = network([2, 7, 4])
    with pytest.raises(ValueError, match=r"no head for task 3: classes=\(2, 7, 4\) names 3 tasks"):
        net.select(3)
    assert net.selected == 0
    assert len(net.heads) == 1


def test_an_empty_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="no head for task 0"):
        MultiHead(MLP((6, 5)), 5, [])


def test_a_negative_task_is_refused() -> None:
    with pytest.raises(ValueError, match="got -1"):
        network().select(-1)


@pytest.mark.parametrize("task", [1.0, "1", None, True])
def test_a_task_that_is_no_int_is_refused(task: object) -> None:
    with pytest.raises(TypeError, match="task must be an int"):
        network().select(task)  # type: ignore[arg-type]


def test_heads_come_last_in_the_parameters() -> None:
    names = [name for name, _ in network(tasks=2).named_parameters()]
    assert names == ["backbone.hidden.0.weight", "heads.0.weight", "heads.1.weight"]


def test_bias_is_an_option() -> None:
    assert network().heads[0].bias is None
    assert network(bias=True).heads[0].bias.shape == (3,)


def test_extra_arguments_reach_the_backbone() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, by: float, *, plus: float) -> torch.Tensor:
            return x * by + plus

    net, x = MultiHead(Scaled(), 6, 3), torch.randn(4, 6)
    assert_close(net(x, 2.0, plus=1.0), (2 * x + 1) @ weight(net, 0).T)


def test_new_heads_follow_the_backbone_in_dtype_and_mode() -> None:
    net = network().double().eval()
    net.select(1)
    assert weight(net, 1).dtype == torch.float64
    assert not net.heads[1].training


def test_new_heads_follow_the_backbone_to_its_device() -> None:
    net = network().to("meta")
    net.select(1)
    assert weight(net, 1).device.type == "meta"


def test_without_backbone_parameters_new_heads_follow_the_first_head() -> None:
    net = MultiHead(nn.Flatten(), 6, 3).double()
    net.select(1)
    assert net(torch.randn(2, 6, dtype=torch.float64)).dtype == torch.float64


def test_heads_are_initialised_as_torch_does() -> None:
    net = network()
    torch.manual_seed(0)
    net.select(1)
    torch.manual_seed(0)
    assert torch.equal(weight(net, 1), nn.Linear(5, 3, bias=False).weight)


def test_init_is_applied_to_every_head() -> None:
    net = network(tasks=3, init=ones)
    assert all(bool((weight(net, task) == 1).all()) for task in range(3))


def test_loading_grows_the_heads() -> None:
    saved, fresh, x = network([2, 7, 4], tasks=3), network([2, 7, 4]), torch.randn(4, 6)
    fresh.load_state_dict(saved.state_dict())
    assert fresh.selected == 0
    for task in range(3):
        saved.select(task)
        fresh.select(task)
        assert torch.equal(saved(x), fresh(x))


def test_loaded_heads_have_the_size_of_the_saved_ones() -> None:
    saved, fresh = network([3, 7, 4], tasks=3), network(3)
    fresh.load_state_dict(saved.state_dict())
    assert [head.out_features for head in fresh.heads] == [3, 7, 4]


@pytest.mark.parametrize("assign", [False, True])
def test_loading_works_inside_another_module(assign: bool) -> None:
    saved, fresh = nn.Sequential(network(tasks=3)), nn.Sequential(network())
    fresh.load_state_dict(saved.state_dict(), assign=assign)
    assert_close(fresh.state_dict(), saved.state_dict())


def test_loading_draws_no_random_numbers() -> None:
    saved, fresh = network(tasks=3), network()
    state = torch.get_rng_state()
    fresh.load_state_dict(saved.state_dict())
    assert torch.equal(torch.get_rng_state(), state)


def test_fewer_saved_heads_are_an_ordinary_error() -> None:
    saved, larger = network(tasks=1), network(tasks=2)
    with pytest.raises(RuntimeError, match=r'Missing key.*"heads\.1\.weight"'):
        larger.load_state_dict(saved.state_dict())
    larger.load_state_dict(saved.state_dict(), strict=False)
    assert torch.equal(weight(larger, 0), weight(saved, 0))


def test_a_gap_in_the_saved_heads_is_an_ordinary_error() -> None:
    state, fresh = network(tasks=3).state_dict(), network()
    del state["heads.1.weight"]
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"heads\.2\.weight"'):
        fresh.load_state_dict(state)


def test_copies_are_independent_and_alike() -> None:
    net, x = network(tasks=2, init=ones), torch.randn(4, 6)
    buffer = io.BytesIO()
    torch.save(net, buffer)
    buffer.seek(0)
    for twin in (
        copy.deepcopy(net),
        pickle.loads(pickle.dumps(net)),
        torch.load(buffer, weights_only=False),
    ):
        assert twin.selected == 1
        assert torch.equal(twin(x), net(x))
        twin.select(2)
        assert (weight(twin, 2) == 1).all()
        assert len(net.heads) == 2
