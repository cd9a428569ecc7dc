"""A task that is told wins over one that would be inferred, in calls and in exports; what cannot be told is said."""

import pytest
import torch
from torch import nn

from codecl.methods import CodeCL, Method
from tests.method.inference_cases import D, inputs


@pytest.fixture
def method() -> Method:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(D, 16), nn.ReLU(), nn.Linear(16, 2))
    method = CodeCL(model, heads=["2"], evidence="auto")
    for t in range(2):
        method.begin_task(t, [inputs(t)])
        nn.init.normal_(model[2].weight)
        method.end_task([inputs(t)])
    return method


def test_a_task_that_is_told_wins_over_one_that_would_be_inferred(method: Method) -> None:
    x = inputs(1)
    with method.task(0):
        expected = method.model(x)
    with method.task("auto"):
        inferred = method.model(x)
        with method.task(0):
            torch.testing.assert_close(method.model(x), expected, rtol=0, atol=0)
            with method.task("auto"):
                torch.testing.assert_close(method.model(x), inferred, rtol=0, atol=0)
            torch.testing.assert_close(method.model(x), expected, rtol=0, atol=0)
        with method.task("auto"):
            torch.testing.assert_close(method.model(x), inferred, rtol=0, atol=0)
        torch.testing.assert_close(method.model(x), inferred, rtol=0, atol=0)
    assert not torch.equal(inferred, expected)
    assert "forward" not in vars(method.model)


def test_an_export_within_auto_is_a_model_of_its_own(method: Method) -> None:
    x = inputs(1)
    with method.task(0):
        expected = method.model(x)
    with method.task("auto"):
        plain = method.export(0)
    torch.testing.assert_close(plain(x), expected)
    for parameter in plain.parameters():
        nn.init.zeros_(parameter)
    assert not plain(x).any()
    with pytest.raises(
        ValueError, match=r"^a plain model infers nothing: export one of the tasks \[0, 1\], not 'auto'"
    ):
        method.export("auto")


@pytest.mark.parametrize(
    ("output", "found"), [(lambda x: {"a": x}, "a dict"), (lambda x: x[:, :, None], r"\[40, 2, 1\]")]
)
def test_outputs_that_are_no_classes_are_named(method: Method, output, found: str) -> None:  # type: ignore[no-untyped-def]
    method.forward = lambda model, batch: output(model(batch))
    with pytest.raises(TypeError, match=rf"outputs \[inputs, classes\]; the model returned {found}\. Give .* forward="):
        method.predict(inputs(1))
