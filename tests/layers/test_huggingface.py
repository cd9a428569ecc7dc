"""Layers of transformers and peft against the rows that they meet, written down token by token."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from codecl.attach import capture_moments
from tests.attach.capture_cases import gram
from tests.layers.cases import attached, normal, redrawn, seeds

transformers = pytest.importorskip("transformers")
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts  # noqa: E402
from transformers.models.mixtral.modeling_mixtral import MixtralExperts, MixtralTopKRouter  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # of these packages
CLOSE = {"rtol": 1e-9, "atol": 1e-9}
H, WIDE, EXPERTS, TOP = 5, 4, 3, 2


def mixture(module_type, config_type, implementation):
    config = config_type(
        hidden_size=H, intermediate_size=WIDE, num_local_experts=EXPERTS, num_experts_per_tok=TOP, num_hidden_layers=1
    )
    config._experts_implementation = implementation
    return module_type(config)


def grams(X):
    return X.mT @ X


@given(st.sampled_from(["eager", "batched_mm"]), seeds)
def test_each_expert_sees_the_tokens_that_it_is_given(implementation, seed):
    layer = redrawn(mixture(MixtralExperts, transformers.MixtralConfig, implementation), seed)
    x, generator = normal(seed + 5, 6, H), torch.Generator().manual_seed(seed)
    chosen = torch.stack([torch.randperm(EXPERTS, generator=generator)[:TOP] for _ in range(6)])
    shares = torch.rand(6, TOP, generator=generator, dtype=torch.float64)
    with attached(layer) as weights, torch.no_grad():
        before = layer(x, chosen, shares)
        seen = capture_moments(layer, weights, [(x, chosen, shares)], lambda model, batch: model(*batch))
    for e in range(EXPERTS):
        X = torch.stack([x[i] for i in range(6) if e in chosen[i]] or [torch.zeros(H, dtype=torch.float64)])
        gate, up = (X @ layer.gate_up_proj[e].detach().mT).chunk(2, dim=-1)
        assert_close(gram(seen["gate_up_proj"][e]), grams(X), **CLOSE)
        assert_close(gram(seen["down_proj"][e]), grams(F.silu(gate) * up), **CLOSE)
    with attached(layer) as weights, torch.no_grad():
        for name, weight in weights.items():  # what these rows do not reach is free
            bases = [moments.spectrum()[0] for moments in seen[name]]
            steps = normal(seed + 7, *weight.shape)
            held = torch.stack([s - s @ B @ B.mT for s, B in zip(steps, bases, strict=True)])
            weight.parameter += weight.kind.parameter(held)
        assert_close(layer(x, chosen, shares), before, rtol=1e-7, atol=1e-7)


@given(seeds)
def test_experts_that_stand_the_other_way_round(seed):
    layer = redrawn(mixture(GptOssExperts, transformers.GptOssConfig, "eager"), seed)
    x, chosen = normal(seed + 5, 4, H), torch.tensor([[0, 1], [1, 0], [0, 1], [1, 0]])
    shares = torch.ones(4, TOP, dtype=torch.float64) / TOP
    with attached(layer) as weights, torch.no_grad():
        assert weights["gate_up_proj"].shape == (EXPERTS, 2 * WIDE, H)
        seen = capture_moments(layer, weights, [(x, chosen, shares)], lambda model, batch: model(*batch))
    assert_close(gram(seen["gate_up_proj"][1]), grams(x), **CLOSE)
    assert_close(gram(seen["gate_up_proj"][2]), torch.zeros(H, H, dtype=torch.float64), **CLOSE)
    gated = layer._apply_gate(x @ layer.gate_up_proj[0].detach() + layer.gate_up_proj_bias[0].detach())
    assert_close(gram(seen["down_proj"][0]), grams(gated), **CLOSE)


@given(seeds)
def test_a_router_sees_all_tokens(seed):
    config = transformers.MixtralConfig(hidden_size=H, num_local_experts=EXPERTS, num_experts_per_tok=TOP)
    layer, x = redrawn(MixtralTopKRouter(config), seed), normal(seed + 5, 2, 3, H)
    with attached(layer) as weights, torch.no_grad():
        seen = capture_moments(layer, weights, [x])
    assert_close(gram(seen["weight"][0]), grams(x.flatten(0, 1)), **CLOSE)


def counts_of(moments):
    return torch.stack([gram(m).squeeze() for m in moments])


@pytest.mark.parametrize("family", ["opt", "bart", "whisper"])
def test_positions_are_the_entries_that_were_looked_up(family):
    if family == "opt":
        from transformers.models.opt.modeling_opt import OPTLearnedPositionalEmbedding

        table, args, expected = (
            OPTLearnedPositionalEmbedding(6, 3),
            (torch.ones(2, 4).long(),),
            [0, 0, 2, 2, 2, 2, 0, 0],
        )
    elif family == "bart":
        from transformers.models.bart.modeling_bart import BartLearnedPositionalEmbedding

        table, args = BartLearnedPositionalEmbedding(6, 3), (torch.zeros(2, 3).long(), 1)
        expected = [0, 0, 0, 2, 2, 2, 0, 0]
    else:
        from transformers.models.whisper.modeling_whisper import WhisperPositionalEmbedding

        table, args, expected = WhisperPositionalEmbedding(6, 3), (torch.zeros(2, 3), 2), [0, 0, 3, 3, 3, 0]
    table = redrawn(table)
    with attached(table) as weights:
        seen = capture_moments(table, weights, [args], lambda model, batch: model(*batch))["weight"]
    counts, expected = counts_of(seen), torch.tensor(expected, dtype=torch.float64)
    assert_close(counts / counts.sum(), expected / expected.sum(), **CLOSE)


def test_all_relative_positions_of_deberta_are_used():
    from tests.zoo.architectures import TEXTS, tiny

    model = transformers.DebertaV2Model(tiny(*TEXTS["DebertaV2Model"]))
    with attached(model) as weights:
        name = "encoder.rel_embeddings.weight"
        assert weights[name].kind.module is model.encoder
        seen = capture_moments(model, weights, [{"input_ids": torch.tensor([[3, 4, 5]])}])[name]
    assert_close(counts_of(seen), torch.ones(len(model.encoder.rel_embeddings.weight), dtype=torch.float64))


def test_the_two_factors_of_an_adapted_table():
    peft = pytest.importorskip("peft")
    model = redrawn(torch.nn.Sequential(torch.nn.Embedding(6, 3)))
    model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["0"], init_lora_weights=False)).double()
    ids = torch.tensor([[1, 4, 4]])
    with attached(model) as weights, torch.no_grad():
        seen = capture_moments(model, weights, [ids])
        A, B = (next(w for name, w in weights.items() if f"_{factor}." in name) for factor in "AB")
        assert (A.shape, B.shape) == ((6, 2, 1), (1, 3, 2))
        assert_close(counts_of(seen[A.name]), torch.tensor([0, 1, 0, 0, 2, 0], dtype=torch.float64))
        assert_close(gram(seen[B.name][0]), grams(A.parameter.detach().mT[ids[0]]), **CLOSE)
