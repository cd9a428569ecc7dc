"""Fusing is switched off on the attached modules alone, and restored."""

import pytest
import torch
from torch import nn

from tests.layers.cases import attached, normal, redrawn

SWITCHES = ("activation_relu_or_gelu", "use_nested_tensor")


def encoder() -> nn.TransformerEncoder:
    return redrawn(nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 6, batch_first=True), 2)).eval()


def switches(model: nn.Module) -> list[object]:
    return [vars(module)[name] for module in model.modules() for name in SWITCHES if name in vars(module)]


@pytest.fixture
def fused(monkeypatch):
    """The fused calls that torch makes."""
    calls = []
    original = torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *a, **k: calls.append(1) or original(*a, **k))
    return calls


@pytest.mark.parametrize("enabled", [True, False])
def test_the_flag_of_the_process_is_left_alone(enabled, monkeypatch):
    model, seen = encoder(), []
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(enabled)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(torch.backends.mha, "set_fastpath_enabled", lambda _: pytest.fail("the flag was set"))
            for module in model.modules():
                module.register_forward_pre_hook(lambda *_: seen.append(torch.backends.mha.get_fastpath_enabled()))
            with attached(model), torch.no_grad():
                model(normal(0, 2, 3, 4))
        assert set(seen) == {enabled}
        assert len(seen) > 10
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def test_attached_modules_do_not_fuse_and_others_do(fused):
    model, other, x = encoder(), encoder(), normal(0, 2, 3, 4)
    before = switches(model)
    assert len(before) == 3
    with torch.no_grad():
        with attached(model):
            assert switches(model) != before
            model(x)
            assert fused == []
            other(x)
            assert len(fused) == 2
        assert switches(model) == before
        model(x)
        assert len(fused) == 4


def test_layers_without_a_protected_weight_go_on_fusing(fused):
    model = encoder()
    model.layers[1].requires_grad_(False)
    with torch.no_grad(), attached(model):
        model(normal(0, 2, 3, 4))
    assert len(fused) == 1
