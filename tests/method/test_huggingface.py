"""Models of the ``transformers`` package, built from a config with random weights."""

import logging

import pytest
import torch
from torch import nn, optim
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from codecl import CodeCL

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.slow

SMALL = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12}


def bert(kind="BertForSequenceClassification", **settings):
    config = transformers.BertConfig(vocab_size=20, max_position_embeddings=8, **SMALL, **settings)
    return getattr(transformers, kind)(config)


def gpt2(kind="GPT2ForSequenceClassification", **settings):
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=8, n_embd=8, n_layer=2, n_head=2, pad_token_id=0, bos_token_id=1, eos_token_id=1,
        **settings,
    )  # fmt: skip
    return getattr(transformers, kind)(config)


def vit():
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(image_size=8, patch_size=4, num_channels=1, **SMALL)
    )


def tokens(task: int) -> list[dict]:
    ids = torch.randint(1, 20, (6, 5), generator=torch.Generator().manual_seed(task))
    return [{"input_ids": ids, "attention_mask": (torch.arange(5) < 4).long().expand(6, 5), "labels": ids[:, 0] % 2}]


def images(task: int) -> list[dict]:
    x = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(task), dtype=torch.float64)
    return [{"pixel_values": x, "labels": (x[:, 0, 0, 0] > 0).long()}]


MODELS = {
    "bert": (bert, "classifier", tokens, 3 + 2 * 6 + 1),  # three embeddings, and the pooler
    "gpt2": (gpt2, "score", tokens, 2 + 2 * 4),  # words and positions; Conv1D is a transposed Linear
    "vit": (vit, "classifier", images, 1 + 2 * 6),
}


def forward(model: nn.Module, batch: dict) -> torch.Tensor:
    return model(**{key: value for key, value in batch.items() if key != "labels"}).logits


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.manual_seed(0)


@pytest.mark.parametrize("name", MODELS)
def test_old_outputs_hold_and_the_new_task_is_learned(name):
    make, head, draw, count = MODELS[name]
    model = make().double()
    first, second = draw(0), draw(1)
    method = CodeCL(model, heads=[head], aperture=1e6, free_dims=2, samples=None, forward=forward)
    assert len(method.weights) == count
    assert not method.layers.of_role("uncovered", "skipped")
    method.guard(opt := optim.AdamW(model.parameters(), lr=0.01))
    outputs = {}
    for task, data in (("first", first), ("second", second)):
        method.begin_task(task, data)
        before = loss_on(model, data)
        for batch in data * 6:
            model.train()
            opt.zero_grad()
            cross_entropy(forward(model, batch), batch["labels"]).backward()
            opt.step()
        assert loss_on(model, data) < before
        method.end_task(data)
        outputs[task] = shown(method, task, first)
    assert all(weight.rows_seen for weight in method.weights.values())
    assert_close(shown(method, "first", first), outputs["first"], rtol=1e-5, atol=1e-5)
    for task, expected in outputs.items():
        plain = method.export(task).eval()
        with torch.no_grad():
            assert_close(torch.cat([forward(plain, b) for b in first]), shown(method, task, first))
        assert not torch.equal(expected, torch.zeros_like(expected))


@torch.no_grad()
def loss_on(model, data):
    return sum(float(cross_entropy(forward(model.eval(), batch), batch["labels"])) for batch in data)


def shown(method, task, data):
    with method.task(task), torch.no_grad():
        return torch.cat([forward(method.model.eval(), batch) for batch in data])


def test_gpt2_multiplies_the_other_side():
    """The effective weight of a Conv1D is ``Wᵀ`` of the canonical one."""
    model = gpt2().double()
    weight = CodeCL(model, heads=["score"]).weights["transformer.h.0.attn.c_attn.weight"]
    assert weight.shape == (1, 24, 8)
    assert torch.equal(weight.matrices()[0], model.transformer.h[0].attn.c_attn.weight.mT)


@pytest.mark.parametrize(("make", "tied"), [(gpt2, "GPT2LMHeadModel"), (bert, "BertForMaskedLM")])
def test_a_table_that_is_also_the_output_layer_has_two_sides(make, tied, tmp_path):
    """An export in which they differ stays untied when it is saved and loaded."""
    model = make(tied)
    method = CodeCL(model, aperture=1e6, overlap=0.0, forward=lambda model, ids: model(input_ids=ids).logits)
    sides = [weight for weight in method.weights.values() if weight.twins]
    assert len({weight.parameter for weight in sides}) == 1
    assert len(sides) == 2
    ids = torch.randint(0, model.config.vocab_size, (4, 6), generator=torch.Generator().manual_seed(0))
    for task in range(2):
        method.begin_task(task, [ids])
        for M in method.parameters():
            M.data += 0.1
        method.end_task([ids])
    with method.task(1), torch.no_grad():
        expected = model.eval()(input_ids=ids).logits
    method.export(1).save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert_close(loaded(input_ids=ids).logits, expected)


def test_class_tokens_and_positions_are_biases():
    table = CodeCL(vit(), heads=["classifier"], bias="per-task").layers
    for name in ("cls_token", "position_embeddings"):
        assert table[f"vit.embeddings.{name}"].note == "per-task: a copy for every task"


def test_a_norm_is_known_by_its_name():
    config = transformers.LlamaConfig(vocab_size=20, num_key_value_heads=2, pad_token_id=0, **SMALL)
    table = CodeCL(transformers.LlamaForSequenceClassification(config), heads=["score"]).layers
    assert {row.module_type for row in table.of_role("norm")} == {"LlamaRMSNorm"}
    assert not table.of_role("uncovered")
