"""A zoo of layers and architectures: each is protected and unmoved over a second task, or refused by name."""

import pytest
import torch
from torch import nn

from codecl import GPM
from tests.zoo.architectures import ADAPTERS, ARCHITECTURES
from tests.zoo.table import END, PAGE, START, ZOO, line
from tests.zoo.torch_layers import LAYERS, layer
from tests.zoo.trial import Outcome, Specimen, trial

pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages that are tried
SINGLE, DOUBLE = 5e-6, 1e-9
ROWS = {row for row in PAGE.read_text().partition(START)[2].partition(END)[0].splitlines() if row.startswith("| ")}


def check(name: str, outcome: Outcome, drift: float) -> None:
    assert outcome.drift < drift
    assert line(name, outcome) in ROWS, "run `python -m tests.zoo.table`"


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_torch(name):
    check(name, trial(layer(name)), DOUBLE)


def test_no_layer_of_torch_is_left_out():
    """Layers with parameters can reset them; lazy ones become others."""
    kinds = {name: kind for name, kind in vars(nn).items() if isinstance(kind, type) and issubclass(kind, nn.Module)}
    able = {name for name, kind in kinds.items() if any(hasattr(kind, f"{p}reset_parameters") for p in ("", "_"))}
    able -= {name for name in able if name.startswith("Lazy")} | {"RNNBase", "RNNCellBase"}
    assert able <= set(LAYERS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_of_transformers(name):
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    outcome = trial(ARCHITECTURES[name](name))
    assert not outcome.protected or outcome.moved > 0.25
    check(name, outcome, SINGLE)


@pytest.mark.slow
@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_of_peft(name):
    pytest.importorskip("peft")
    outcome = trial(ADAPTERS[name](name))
    assert outcome.moved == 1
    check(name, outcome, SINGLE)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "convnext_atto", "vit_tiny_patch16_224", "mixer_s32_224", "nf_resnet26"])
def test_an_architecture_of_timm(name):
    """Where it can be imported: it asks for torchvision."""
    timm = pytest.importorskip("timm", reason="timm, or torchvision, which it imports", exc_type=ImportError)
    model = timm.create_model(name, num_classes=4)
    size = 224 if "224" in name else 32
    calls = tuple({"x": torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(n))} for n in (2, 3))
    outcome = trial(Specimen(model, calls, lambda output: output))
    assert outcome.drift < 10 * SINGLE


def test_a_drift_would_be_noticed(monkeypatch):
    """Without its projections GPM is fine-tuning."""
    monkeypatch.setattr(GPM, "_protect", lambda self: None)
    assert trial(layer("Linear")).drift > 100 * SINGLE


def test_the_page_has_no_row_that_is_not_tried():
    names = {name for specimens in ZOO.values() for name in specimens}
    shown = {row.split(" | ")[0].removeprefix("| ").strip("`") for row in ROWS}
    assert {name for name in shown if not name[0].isdigit()} == names
