"""The vision transformer against plain functions with attention as loops, and against its promises."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from codecl import CodeCL, MultiHead
from codecl.networks import VisionTransformer


def attention(x: Tensor, qkv: Tensor, out: Tensor, heads: int) -> Tensor:
    """One image, ``[patches, width]``: every head of every patch for itself."""
    q, k, v = (x @ part.T for part in qkv.chunk(3))
    d, mixed = x.shape[1] // heads, torch.zeros_like(x)
    for h in range(0, x.shape[1], d):
        for i in range(len(x)):
            weights = [math.exp(float(q[i, h : h + d] @ k[j, h : h + d]) / math.sqrt(d)) for j in range(len(x))]
            for j, weight in enumerate(weights):
                mixed[i, h : h + d] += weight / sum(weights) * v[j, h : h + d]
    return mixed @ out.T


def position(row: int, column: int, width: int) -> Tensor:
    found = []
    for place in (row, column):
        angles = [place / 10_000 ** (4 * i / width) for i in range(width // 4)]
        found += [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]
    return torch.tensor(found, dtype=torch.float64)


def reference(state: dict[str, Tensor], image: Tensor, patch: int, depth: int, heads: int) -> Tensor:
    W, side = state["embed.weight"], image.shape[-1] // patch
    tokens = []
    for row in range(side):
        for column in range(side):
            part = image[:, row * patch : (row + 1) * patch, column * patch : (column + 1) * patch]
            tokens.append(W.flatten(1) @ part.flatten() + position(row, column, len(W)))
    x = torch.stack(tokens)

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(1, keepdim=True)
        scaled = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
        return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]

    for i in range(depth):
        name = f"blocks.{i}."
        qkv, out = (state[f"{name}attention.{which}.weight"] for which in ("qkv", "out"))
        x = x + attention(norm(x, name + "norm1"), qkv, out, heads)
        hidden = norm(x, name + "norm2") @ state[f"{name}fc1.weight"].T
        gelu = 0.5 * hidden * (1 + torch.erf(hidden / math.sqrt(2)))
        x = x + gelu @ state[f"{name}fc2.weight"].T
    return norm(x, "norm").mean(0)


def small(depth: int = 2, **settings: int) -> VisionTransformer:
    """In float64, with norms other than 1 and 0."""
    torch.manual_seed(0)
    kept = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        net = VisionTransformer(**{"image_size": 6, "patch": 2, "width": 8, "heads": 2, "depth": depth, **settings})
    finally:
        torch.set_default_dtype(kept)
    for m in net.modules():
        if isinstance(m, nn.LayerNorm):
            nn.init.uniform_(m.weight, 0.5, 1.5)
            nn.init.normal_(m.bias)
    return net


@pytest.mark.parametrize(
    "settings", [{}, {"heads": 4, "depth": 1}, {"patch": 3, "channels": 1}, {"mlp_ratio": 1.5, "heads": 1}]
)
def test_forward(settings: dict[str, int]) -> None:
    net = small(**settings)
    x = torch.randn(2, settings.get("channels", 3), 6, 6, dtype=torch.float64)
    y = net(x)
    assert y.shape == (2, net.features)
    state = net.state_dict()
    for image, found in zip(x, y, strict=True):
        expected = reference(state, image, settings.get("patch", 2), settings.get("depth", 2), settings.get("heads", 2))
        assert_close(found, expected, rtol=1e-10, atol=1e-10)


def shuffled(x: Tensor, order: Tensor, patch: int = 2) -> Tensor:
    """The image with its patches in another order."""
    columns = F.unfold(x, patch, stride=patch)[:, :, order]
    return F.fold(columns, x.shape[-1], patch, stride=patch)


def test_patches_are_a_set_but_for_their_positions() -> None:
    net, order = small(), torch.randperm(9)
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    before = net(x)
    assert (net(shuffled(x, order)) - before).abs().max() > 1e-3
    net.positions = net.positions[order]
    assert_close(net(shuffled(x, order)), before)


def test_positions_are_all_different_and_not_saved() -> None:
    net = VisionTransformer(image_size=32, patch=4, width=192, depth=1)
    assert net.positions.shape == (64, 192)
    expected = torch.stack([position(row, column, 192) for row in range(8) for column in range(8)])
    assert_close(net.positions, expected.float())
    assert torch.cdist(net.positions, net.positions).fill_diagonal_(1).min() > 0.5
    assert not any("positions" in name for name in net.state_dict())
    assert net.double().positions.dtype == torch.float64


def test_parameters_of_the_benchmark() -> None:
    net = VisionTransformer()
    weights = [W for W in net.parameters() if W.dim() > 1]
    assert [W[0].numel() for W in weights] == [48] + [192, 192, 192, 768] * 6
    assert [len(W) for W in weights] == [192] + [576, 192, 768, 192] * 6
    assert sum(p.numel() for p in net.parameters()) == 48 * 192 + 6 * 12 * 192**2 + 13 * 2 * 192
    assert {name.rsplit(".")[-2][:4] for name, p in net.named_parameters() if p.dim() == 1} == {"norm"}


def test_a_projection_method_covers_all_of_it() -> None:
    model = MultiHead(VisionTransformer(image_size=8, patch=4, width=8, heads=2, depth=2), 8, 2)
    roles = {row.name: row.role for row in CodeCL(model).layers}
    assert set(roles.values()) == {"protected", "norm", "head"}
    matrices = {name for name, p in model.backbone.named_parameters() if p.dim() > 1}
    assert {name for name, role in roles.items() if role == "protected"} == {f"backbone.{name}" for name in matrices}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_size": 30}, "patch=4 does not divide image_size=30"),
        ({"heads": 5}, "heads=5 does not divide width=192"),
        ({"width": 6}, "width=6 must be a multiple of 4"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VisionTransformer(**settings)
