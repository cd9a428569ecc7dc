"""Evidence of layers that are called twice, in groups or with sequences, and heads of different sizes."""

import pytest
import torch
from torch import Tensor, nn

from codecl.algebra import Conceptor
from codecl.algebra.evidence import log_density
from codecl.method.inference import task_scores
from codecl.method.task_evidence import APERTURE
from codecl.methods import CodeCL, Method
from codecl.networks import MLP, MultiHead
from tests.method.inference_cases import D, inputs, remember


class Twice(nn.Module):
    """Two halves of an input go through one layer, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(D // 2, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1)
        return self.head((self.layer(left) - self.layer(right)).relu())  # type: ignore[no-any-return]


def test_a_layer_that_is_called_twice_judges_by_the_mean_of_both_calls() -> None:
    method = remember(CodeCL(Twice(), heads=["head"], evidence="auto"), inputs(0), inputs(1))
    x = inputs(1, n=8)
    stored, (scale,) = method.evidence.tasks, method.evidence.scale.values()  # type: ignore[union-attr]
    expected = []
    for task in stored:
        (factor,) = task["factors"]["layer.weight"]
        halves = [log_density(Conceptor(factor.double()), APERTURE / scale, half) for half in x.chunk(2, 1)]
        expected.append((halves[0] + halves[1]) / 2 / (D // 2))
    torch.testing.assert_close(task_scores(method, x), torch.stack(expected, 1))
    assert (method.infer_task(x) == 1).all()


def test_groups_are_no_louder_than_one_matrix_of_as_many_dimensions() -> None:
    model = nn.Sequential(nn.Unflatten(1, (D, 1)), nn.Conv1d(D, D, 1, groups=D), nn.Flatten(), nn.Linear(D, 2))
    method = remember(CodeCL(model, heads=["3"], evidence="auto"), inputs(0), inputs(1))
    x = inputs(1, n=8)
    scale, found = method.evidence.scale["1.weight"], []  # type: ignore[union-attr]
    for task in method.evidence.tasks:  # type: ignore[union-attr]
        each = [
            log_density(Conceptor(factor.double()), APERTURE / scale, x[:, i : i + 1])
            for i, factor in enumerate(task["factors"]["1.weight"])
        ]
        found.append(torch.stack(each).sum(0) / D)
    torch.testing.assert_close(task_scores(method, x), torch.stack(found, 1))


class SequenceFirst(nn.Module):
    """Attention over ``[positions, inputs, features]`` beside a layer that sees the inputs one by one."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.plain = nn.Linear(D, D) if plain else nn.Identity()
        self.mix = nn.TransformerEncoderLayer(4, 1, 8, dropout=0.0, batch_first=False)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.plain(x).reshape(len(x), 3, 4).transpose(0, 1)
        return self.head(self.mix(tokens).mean(0))  # type: ignore[no-any-return]


@pytest.mark.parametrize("n", [3, 8])
def test_what_sees_positions_first_has_no_say_whatever_the_size_of_the_batch(n: int) -> None:
    method = remember(CodeCL(SequenceFirst(plain=True), heads=["head"], evidence="auto"), inputs(0), inputs(1))
    heard = {name for task in method.evidence.tasks for name in task["factors"]}  # type: ignore[union-attr]
    assert "plain.weight" in heard
    assert not {"mix.linear1.weight", "mix.linear2.weight"} & heard
    assert (method.infer_task(inputs(1, n)) == 1).all()
    assert 0 <= method.novelty([inputs(1, n)]) <= 1


def test_a_network_whose_weights_tell_no_inputs_apart_is_refused_before_it_learns() -> None:
    method = CodeCL(SequenceFirst(plain=False), heads=["head"], evidence=["mix.linear*.weight"])
    with pytest.raises(ValueError, match=r"^evidence: none of \['mix\.linear1\.weight', .* one by one"):
        method.begin_task(0, [inputs(0)])
    assert method.tasks == []


def test_a_head_of_many_classes_is_as_sure_as_one_of_few() -> None:
    torch.manual_seed(0)
    model = MultiHead(MLP((D, 16)), 16, [2, 50])
    method = remember(Method(model), inputs(0), inputs(1))
    with torch.no_grad():
        for head in model.heads:
            head.weight.zero_()
        model.heads[0].weight[0, :] = 0.01  # nearly a guess
        model.heads[1].weight[7, :] = 3.0  # nearly certain
    with method.task(1):
        certain = model(inputs(1)).softmax(1).amax(1) > 0.9
    assert certain.any()
    assert (method.infer_task(inputs(1))[certain] == 1).all()
