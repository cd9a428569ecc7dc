"""The arguments that say what counts: samples, apertures by name, cuts, tolerances, gates, patches."""

import math
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from codecl import CodeCL, Conceptor
from tests.algebra import dense
from tests.methods.cases import inputs, learn, mlp, seeded, task_data


def body(d: int = 6, o: int = 5) -> nn.Sequential:
    """One protected layer and a head."""
    torch.manual_seed(0)
    return nn.Sequential(OrderedDict(body=nn.Linear(d, o), head=nn.Linear(o, 2))).double()


def remembered(method: CodeCL, *tasks: torch.Tensor) -> list[Conceptor]:
    """Go through ``tasks`` without training."""
    for X in tasks:
        method.begin_task(len(method.tasks), [X])
        method.end_task([X])
    return method.memory["body.weight"]


def rows(n: int, d: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(n, d, generator=seeded(seed), dtype=torch.float64)


def diagonal(*energies: float) -> torch.Tensor:
    """Six rows whose correlation is ``diag(energies)``."""
    return torch.diag(torch.tensor(energies, dtype=torch.float64).mul(6).sqrt())


def test_samples_takes_whole_batches_until_there_are_enough():
    batches = list(rows(40, 6, 1).split(8))
    for samples, taken in [(1, 1), (8, 1), (9, 2), (16, 2), (125, 5), (None, 5)]:
        method = CodeCL(body(), heads=["head"], samples=samples, aperture=2.0)
        method.begin_task(0)
        method.end_task(batches)
        expected = dense.fit(torch.cat(batches[:taken]), 2.0)
        assert_close(method.memory["body.weight"][0].dense(), expected, atol=1e-12, rtol=0)


def test_an_aperture_for_each_layer_by_the_first_pattern_that_fits():
    method = CodeCL(mlp(), heads=["head"], aperture={"first.*": 0.5, "s*": 7, "*": 2})
    assert method.aperture == {"first.weight": 0.5, "second.weight": 7.0}
    assert CodeCL(mlp(), heads=["head"], aperture={"*": 2, "first.*": 0.5}).aperture["first.weight"] == 2.0
    batches = task_data(0)
    learn(method, [batches])
    X = inputs(batches)
    with torch.no_grad():
        H = method.model.tanh(method.model.norm(method.model.first(X)))
    assert_close(method.memory["first.weight"][0].dense(), dense.fit(X, 0.5), atol=1e-10, rtol=0)
    assert_close(method.memory["second.weight"][0].dense(), dense.fit(H, 7.0), atol=1e-10, rtol=0)


def test_minimum_forgets_small_singular_values_after_the_or_and_not_before():
    # Odds 0.3 are s = 0.23, above 0.2, and 0.15 are s = 0.13, below it; together 0.45 are s = 0.31.
    X = diagonal(1.0, 0.3, 0.05, 0.0, 0.0, 0.0)
    Y = diagonal(1.0, 0.15, 0.05, 0.0, 0.0, 0.0)
    cases = [(0.0, [0.5, 0.2308, 0.0476], [2 / 3, 0.3103, 0.0909]), (0.2, [0.5, 0.2308], [2 / 3, 0.3103])]
    for minimum, first, both in cases:
        method = CodeCL(body(), heads=["head"], aperture=1.0, minimum=minimum)
        (C,) = remembered(method, X)
        assert_close(C.singular_values, torch.tensor(first, dtype=torch.float64), atol=1e-4, rtol=0)
        (C,) = remembered(method, Y)
        assert_close(C.singular_values, torch.tensor(both, dtype=torch.float64), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("minimum", "freed"), [(0.0, 2), (0.2, 1)])
def test_minimum_cuts_the_new_inputs_before_they_are_compared(minimum, freed):
    method = CodeCL(body(), heads=["head"], aperture=1.0, overlap=0.0, free_dims=6, minimum=minimum)
    remembered(method, diagonal(1.0, 1.0, 0.0, 0.0, 0.0, 0.0))
    method.begin_task(1, [diagonal(1.0, 0.1, 0.0, 0.0, 0.0, 0.0)])
    assert method.weights["body.weight"].change.U.shape == (1, 6, freed)


@pytest.mark.parametrize(("tolerance", "shared"), [(1e-6, False), (4e-5, False), (6e-5, True)])
def test_tolerance_is_one_minus_the_cosine_of_the_angle_that_still_counts_as_shared(tolerance, shared):
    method = CodeCL(body(), heads=["head"], aperture=5.0, overlap=0.0, free_dims=6, tolerance=tolerance)
    theta = 0.01  # 1 − cos θ = 5e-5
    past = torch.eye(6, dtype=torch.float64)[:1]
    new = torch.zeros(1, 6, dtype=torch.float64)
    new[0, 0], new[0, 1] = math.cos(theta), math.sin(theta)
    remembered(method, past)
    method.begin_task(1, [new])
    change = method.weights["body.weight"].change
    assert (change is not None) == shared
    if change is not None:
        half = torch.tensor([math.cos(theta / 2), math.sin(theta / 2), 0, 0, 0, 0], dtype=torch.float64)
        assert_close(change.U[0, :, 0].abs(), half, atol=1e-9, rtol=0)


def test_overlap_is_the_ratio_of_capacities():
    """C has s = ½ twice; new inputs share one direction with odds 1, and the parallel sum 1/(1+1) is s = ⅓."""
    for overlap, freed in [(0.33, True), (0.34, False)]:
        method = CodeCL(body(), heads=["head"], aperture=1.0, overlap=overlap, free_dims=2)
        remembered(method, diagonal(1.0, 1.0, 0.0, 0.0, 0.0, 0.0))
        method.begin_task(1, [diagonal(1.0, 0.0, 0.0, 1.0, 0.0, 0.0)])
        assert (method.weights["body.weight"].change is not None) == freed


def test_the_freed_directions_are_the_strongest_shared_ones():
    method = CodeCL(body(), heads=["head"], aperture=1.0, overlap=0.0, free_dims=2)
    remembered(method, diagonal(1.0, 9.0, 4.0, 1.0, 0.0, 0.0))
    method.begin_task(1, [diagonal(1.0, 2.0, 0.1, 5.0, 7.0, 0.0)])  # parallel sums ½, 18/11, 0.098, ⅚
    U = method.weights["body.weight"].change.U[0]
    expected = torch.zeros(6, 2, dtype=torch.float64)
    expected[1, 0] = expected[3, 1] = 1.0
    assert_close(U.abs(), expected, atol=1e-9, rtol=0)


class Small(nn.Module):
    """A convolution of 2·2·2 = 8 inputs, one of 3·1·1 = 3 named shortcut, and two Linear layers of 12 and 5."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(2, 3, 2)
        self.shortcut = nn.Conv2d(3, 3, 1)
        self.wide, self.narrow, self.head = nn.Linear(12, 5), nn.Linear(5, 5), nn.Linear(5, 2)
        self.double()

    def forward(self, x):
        x = torch.tanh(self.conv(x))
        x = (x + self.shortcut(x)).flatten(1)
        return self.head(torch.tanh(self.narrow(torch.tanh(self.wide(x)))))


ALL = {"conv.weight", "shortcut.weight", "wide.weight", "narrow.weight"}


@pytest.mark.parametrize(
    ("settings", "freed"),
    [
        ({}, ALL),
        ({"free_dims": 0}, set()),
        ({"smallest": 4}, ALL - {"shortcut.weight"}),  # a convolution of d ≤ K = 3 is closed too
        ({"smallest": 5}, ALL - {"shortcut.weight", "narrow.weight"}),
        ({"smallest": 12}, {"conv.weight"}),
        ({"smallest": 4, "free_dims": 8}, {"wide.weight", "narrow.weight"}),
        ({"closed": ["*shortcut*"]}, ALL - {"shortcut.weight"}),
        ({"closed": ["conv.*", "wide.weight"]}, {"shortcut.weight", "narrow.weight"}),
    ],
)
def test_gates_by_size_and_by_name(settings, freed):
    X = torch.randn(60, 2, 3, 3, generator=seeded(0), dtype=torch.float64)
    method = CodeCL(Small(), heads=["head"], **{"free_dims": 3, "overlap": 0.0, "aperture": 4.0} | settings)
    method.begin_task(0)
    method.end_task([X])
    method.begin_task(1, [X])
    assert {name for name, weight in method.weights.items() if weight.change is not None} == freed


@pytest.mark.parametrize("stride_one", [False, True])
def test_dense_patches_are_taken_at_stride_one(stride_one):
    torch.manual_seed(0)
    model = nn.Sequential(
        OrderedDict(a=nn.Conv2d(2, 3, 3, stride=2, padding=1), b=nn.Conv2d(3, 2, 2, stride=2), flat=nn.Flatten())
    ).double()
    model.append(nn.Linear(2, 2).double())
    X = torch.randn(4, 2, 4, 4, generator=seeded(2), dtype=torch.float64)
    method = CodeCL(model, heads=["3"], aperture=1.5, gain=0.9, dense_patches=["a.*"] if stride_one else [])
    method.begin_task(0)
    method.end_task([X])
    H = model.a(X).detach()
    unfolded = {
        "a.weight": F.unfold(X, 3, stride=1 if stride_one else 2, padding=1),
        "b.weight": F.unfold(H, 2, stride=2),
    }
    for name, patches in unfolded.items():
        seen = patches.mT.flatten(0, 1)
        C = dense.fit(seen, 1.5)
        while (seen @ C).norm(dim=1).sum() / seen.norm(dim=1).sum() < 0.9:
            C = dense.adapt(C, 1.1)
        assert_close(method.memory[name][0].dense(), C, atol=1e-8, rtol=0)


def test_each_group_of_a_convolution_has_its_own_overlap():
    """Group 0 sees the same inputs again and is freed; group 1 sees other ones and is not."""
    model = nn.Sequential(OrderedDict(conv=nn.Conv1d(4, 4, 1, groups=2), flat=nn.Flatten(), head=nn.Linear(4, 2)))
    model = model.double()
    old = torch.tensor([[[1.0], [0.0], [1.0], [0.0]]], dtype=torch.float64)
    new = torch.tensor([[[1.0], [0.0], [0.0], [1.0]]], dtype=torch.float64)
    method = CodeCL(model, heads=["head"], aperture=3.0, free_dims=2, overlap=0.1, random_start=True)
    method.begin_task(0)
    method.end_task([old])
    method.begin_task(1, [new])
    U = method.weights["conv.weight"].change.U
    assert_close(U.abs(), torch.tensor([[[1.0], [0.0]], [[0.0], [0.0]]], dtype=torch.float64))
    W, W_eff = model.conv.weight.detach().flatten(1), method.export(1).conv.weight.detach().flatten(1)
    assert torch.equal(W_eff[2:], W[2:])
    assert (W_eff[:2, 0] - W[:2, 0]).abs().min() > 1e-3
