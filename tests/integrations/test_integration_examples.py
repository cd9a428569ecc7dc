"""The examples of the integrations run where their packages are installed, and keep what fine-tuning loses."""

import importlib
import logging
from pathlib import Path

import pytest
import torch

from codecl import CodeCL, Method
from tests.integrations import torchvision_operators

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
DIGITS = {"aperture": 120.0, "free_dims": 16}
SENTENCES = {"aperture": {"*embeddings*": 300.0, "*": 16.0}, "free_dims": 8}
NEEDED = {
    "huggingface_trainer": (["transformers", "accelerate"], SENTENCES),
    "lightning_digits": (["lightning"], DIGITS),
    "accelerate_digits": (["accelerate"], DIGITS),
    "avalanche_digits": (["avalanche"], DIGITS),
    "timm_digits": (["timm"], DIGITS),
    "peft_digits": (["transformers", "peft"], DIGITS),
}


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    logging.getLogger("transformers").setLevel(logging.ERROR)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torchvision_operators.declare()

    def import_it(name):
        for package in NEEDED[name][0]:
            pytest.importorskip(package)
        example = importlib.import_module(name)
        if name == "huggingface_trainer":
            monkeypatch.setattr(example, "tasks", lambda: importlib.import_module("text_domains").tasks()[:2])
        else:
            monkeypatch.setattr(example, "TASKS", 2)
        monkeypatch.setattr(example, "EPOCHS", 6)
        return example

    return import_it


def test_there_is_no_example_that_is_not_tried():
    found = {
        p.stem
        for p in EXAMPLES.glob("*.py")
        if "codecl.integrations" in p.read_text() or "pip install" in p.read_text()
    }
    assert found == NEEDED.keys()


@pytest.mark.parametrize("name", NEEDED)
def test_an_example(name, load):
    example = load(name)
    plain, protected = example.learn_all(Method), example.learn_all(CodeCL, **NEEDED[name][1])
    assert plain[0] == protected[0]  # the first task is learned alike
    assert plain[0][0] > 80
    assert protected[0][0] - protected[1][0] < min(4, plain[0][0] - plain[1][0])
    assert protected[1][1] > 70


def test_a_merged_export_of_adapters_is_what_the_task_knows(load):
    """And outputs of the first task hold while the adapters learn the second."""
    example = load("peft_digits")
    model = example.with_adapters()
    method = CodeCL(model, heads=["base_model.model.classifier"], aperture=1e5, free_dims=4, samples=None)
    stream, told = example.tasks(), []
    x = stream[0][0].tensors[0]
    for t in range(2):
        loader = example.DataLoader(stream[t][0], batch_size=32)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        method.guard(optimizer)
        method.begin_task(t, loader)
        assert len(method.weights) == 2 * 2 * 6  # A and B of six Linear layers in each of two blocks
        example.train(model, loader, optimizer, 2)
        method.end_task(loader)
        with torch.no_grad(), method.task(0):
            told.append(model.eval()(x))
    torch.testing.assert_close(told[1], told[0], rtol=0, atol=1e-5)
    for t in range(2):
        plain = method.export(t).merge_and_unload()
        assert not [name for name, _ in plain.named_parameters() if "lora" in name]
        with torch.no_grad(), method.task(t):
            torch.testing.assert_close(plain.eval()(x), model.eval()(x), rtol=0, atol=1e-5)
