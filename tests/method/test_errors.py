"""What is refused, and what is said about it."""

import copy

import pytest
import torch
from torch import nn, optim

from codecl import CodeCL, Method
from tests.methods.cases import learn, mlp, task_data

BATCHES = task_data(0)


@pytest.mark.parametrize(
    ("argument", "value", "expected"),
    [
        ("aperture", 0, "aperture must be a finite number above 0; got 0"),
        ("aperture", -1.0, "aperture must be a finite number above 0; got -1.0"),
        ("aperture", float("inf"), "aperture must be a finite number above 0; got inf"),
        ("aperture", float("nan"), "aperture must be a finite number above 0; got nan"),
        ("aperture", {"*": -2.0}, "aperture must be a finite number above 0"),
        ("aperture", {"first*": 1.0}, r"no pattern matches 'second.weight'.*\['first\*'\].*'\*' for the rest"),
        ("free_dims", -1, "free_dims must be a number of directions, 0 or more; got -1"),
        ("overlap", -0.1, r"overlap must be a ratio of capacities in \[0, 1\]; got -0.1"),
        ("overlap", float("nan"), "overlap must be .* got nan"),
        ("samples", 0, "samples must be a positive number of inputs, or None for all; got 0"),
        ("before", "effective", "before must be 'previous' or 'shared'; got 'effective'"),
        ("after", "previous", "after must be 'shared' or 'effective'; got 'previous'"),
        ("gain", 1.0, r"gain must be a share in \[0, 1\).* got 1.0"),
        ("gain", -0.1, r"gain must be a share in \[0, 1\).* got -0.1"),
        ("minimum", 1.0, r"minimum must be a singular value in \[0, 1\); got 1.0"),
        ("minimum", -0.2, r"minimum must be .* got -0.2"),
        ("tolerance", -1e-6, r"tolerance must be .* got -1e-06"),
        ("tolerance", 1.0, r"tolerance must be .* got 1.0"),
        ("norm", "hold", "norm must be 'freeze', 'per-task' or 'free'; got 'hold'"),
        ("bias", None, "bias must be 'freeze', 'per-task' or 'free'; got None"),
        ("heads", ["haed"], "heads: there is no module or parameter 'haed'. Did you mean 'head'?"),
        ("skip", ["frist"], "skip: there is no module or parameter 'frist'. Did you mean 'first'?"),
    ],
)
def test_a_bad_argument_is_named_with_its_value_and_leaves_the_model_alone(argument, value, expected):
    model = mlp()
    before = [copy.copy(vars(module)) for module in model.modules()]
    with pytest.raises(ValueError, match=expected):
        CodeCL(model, **{"heads": ["head"]} | {argument: value})
    for module, variables in zip(model.modules(), before, strict=True):
        assert vars(module).keys() == variables.keys()


def test_an_unknown_argument_is_refused():
    with pytest.raises(TypeError, match="apertures"):
        CodeCL(mlp(), heads=["head"], apertures=2.0)


def test_beginning_twice():
    method = CodeCL(mlp(), heads=["head"])
    method.begin_task("a", BATCHES)
    with pytest.raises(RuntimeError, match="task 'a' was begun and not ended"):
        method.begin_task("b", BATCHES)
    assert method.tasks == ["a"]


def test_ending_what_was_not_begun():
    method = CodeCL(mlp(), heads=["head"])
    with pytest.raises(RuntimeError, match="no task is being learned: call begin_task"):
        method.end_task(BATCHES)
    learn(method, [BATCHES])
    with pytest.raises(RuntimeError, match="no task is being learned"):
        method.end_task(BATCHES)


def test_a_task_of_the_same_name():
    method = CodeCL(mlp(), heads=["head"])
    learn(method, [BATCHES])
    with pytest.raises(ValueError, match=r"task 0 has been learned already, of \[0\]"):
        method.begin_task(0, BATCHES)


@pytest.mark.parametrize(
    ("loader", "error", "message"),
    [
        (None, TypeError, "a loader is any iterable of batches; got None"),
        ("train", TypeError, "a loader is any iterable of batches; got 'train'"),
        ([], ValueError, "the loader yielded no inputs"),
        (iter(()), ValueError, "If it is a generator, it was used up"),
        ([torch.zeros(0, 8)], ValueError, "the loader yielded no inputs"),
    ],
)
def test_a_loader_that_is_missing_or_empty_changes_nothing(loader, error, message):
    method = CodeCL(mlp(), heads=["head"])
    method.begin_task(0)  # the first task looks at no inputs
    with pytest.raises(error, match=message):
        method.end_task(loader)
    assert method.memory == {}
    method.end_task(BATCHES)
    with pytest.raises(error, match=message):
        method.begin_task(1, loader)
    assert method.tasks == [0]
    method.begin_task(1, BATCHES)
    assert method.tasks == [0, 1]


def test_inputs_that_are_not_finite_name_the_layer():
    method = CodeCL(mlp(), heads=["head"])
    method.begin_task(0)
    with pytest.raises(ValueError, match=r"'first\.weight': rows hold NaN"):
        method.end_task([torch.full((3, 8), float("nan"), dtype=torch.float64)])
    assert method.memory == {}


def test_a_detached_method_is_of_no_more_use():
    model = mlp()
    method = CodeCL(model, heads=["head"])
    state = method.state_dict()
    learn(method, [BATCHES])
    method.detach()

    def look():
        with method.task(0):
            pass

    uses = [
        lambda: method.begin_task(1, BATCHES),
        lambda: method.end_task(BATCHES),
        lambda: method.guard(optim.SGD(model.parameters(), lr=0.1)),
        lambda: method.export(0),
        lambda: method.load_state_dict(state),
        method.detach,
        look,
    ]
    for use in uses:
        with pytest.raises(RuntimeError, match="this method was detached from its model"):
            use()


@pytest.mark.parametrize("kind", [CodeCL, Method])
def test_a_distributed_model_is_refused_by_name(kind):
    wrapped = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    with pytest.raises(TypeError, match=r"DistributedDataParallel model is made anew.*method\.replicate"):
        kind(wrapped)


def test_thawing_what_was_frozen_at_attachment_is_refused():
    model = mlp()
    model.second.requires_grad_(False)
    method = CodeCL(model, heads=["head"])
    assert method.layers["second.weight"].role == "frozen"
    learn(method, [BATCHES])
    model.second.requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"'second\.weight'.*did not train when the method was attached"):
        method.begin_task(1, BATCHES)
