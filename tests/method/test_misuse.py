"""A model or a setting that cannot be what was meant is refused by name; a layer without room is told of."""

import warnings

import pytest
import torch
from torch import nn, optim

from codecl import API, CUBER, DFGP, EWC, GPM, OWM, SGP, TRGP, CodeCL, MultiHead
from tests.methods.cases import assert_same, mlp, task_data, train

ONE, TWO = task_data(0, n=4, batch=2), task_data(1)

SLIP = {"frist.weight": 0.5, "*": 1.0}
REFUSED = [
    (CodeCL, {"free_dims": 2.5}, "free_dims must be a whole number; got 2.5"),
    (CodeCL, {"free_dims": True}, "free_dims must be"),
    (CodeCL, {"overlap": 2}, r"overlap must be a ratio of capacities in \[0, 1\]; got 2"),
    (CodeCL, {"closed": ["nolayer"]}, "closed: there is no weight 'nolayer'.*'first.weight'"),
    (CodeCL, {"closed": ["first"]}, "closed: there is no weight 'first'. Known: 'first.weight'"),
    (CodeCL, {"closed": [1]}, r"closed must be a list, each text; got \[1\]"),
    (CodeCL, {"closed": "first*"}, "closed must be a list, each text; got 'first"),
    (CodeCL, {"dense_patches": "conv1"}, "dense_patches must be a list"),
    (CodeCL, {"dense_patches": ["zzz"]}, "dense_patches: there is no weight 'zzz'. Known: 'first.weight'"),
    (CodeCL, {"dense_patches": ["conv1.weight", "zzz"]}, "dense_patches: there is no weight 'zzz'"),
    (CodeCL, {"evidence": ["first.weight", "zzz"]}, "evidence: there is no weight 'zzz'. Known: 'first.weight'"),
    (CodeCL, {"aperture": SLIP}, "aperture: there is no weight 'frist.weight'. Did you mean 'first.weight'"),
    (GPM, {"threshold": SLIP}, "threshold: there is no weight 'frist.weight'. Did you mean 'first.weight'"),
    (GPM, {"images": {"frist.weight": 3}}, "images: there is no weight 'frist.weight'. Did you mean 'first.weight'"),
    (SGP, {"threshold": SLIP}, "threshold: there is no weight 'frist.weight'"),
    (OWM, {"alpha": SLIP}, "alpha: there is no weight 'frist.weight'"),
    (OWM, {"alpha_end": SLIP}, "alpha_end: there is no weight 'frist.weight'"),
    (TRGP, {"threshold": SLIP}, "threshold: there is no weight 'frist.weight'"),
    (TRGP, {"trust": 5}, r"trust must be a share in \[0, 1\]; got 5"),
    (TRGP, {"most_trusted": 1.5}, "most_trusted must be a whole number"),
    (TRGP, {"closed": ["nolayer"]}, "closed: there is no weight 'nolayer'"),
    (CUBER, {"trust": 5}, "trust must be"),
    (API, {"closed": ["nolayer"]}, "closed: there is no weight 'nolayer'"),
    (API, {"warm_up": 0.5}, "warm_up must be a whole number"),
]


@pytest.mark.parametrize(("make", "settings", "message"), REFUSED)
def test_settings_that_cannot_be_are_refused_when_made(make, settings, message):
    model = mlp()
    with pytest.raises(ValueError, match=message):
        make(model, heads=["head"], **settings)
    make(model, heads=["head"])  # nothing was left on the model


@pytest.mark.parametrize(
    ("make", "slip", "meant"),
    [(CodeCL, "apperture", "aperture"), (TRGP, "treshold", "threshold"), (GPM, "haeds", "heads")],
)
def test_slips_in_the_names_of_settings_are_told(make, slip, meant):
    model = mlp()
    with pytest.raises(TypeError, match=f"{make.__name__}: there is no setting '{slip}'. Did you mean '{meant}'"):
        make(model, **{slip: 3})
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        make(model, colour=3)


class Popping(GPM):
    """A method that takes a setting out of what it passes on."""

    def __init__(self, model, **settings):
        self.colour = settings.pop("colour", "blue")
        super().__init__(model, **settings)


def test_a_setting_that_a_constructor_takes_out_is_its_own_affair():
    assert Popping(mlp(), heads=["head"], colour="red", threshold=0.9).colour == "red"
    with pytest.raises(TypeError, match="Did you mean 'threshold'"):
        Popping(mlp(), heads=["head"], treshold=0.9)


def test_patterns_may_match_nothing():
    CodeCL.official(mlp(), heads=["head"], closed=["*shortcut*"])
    CodeCL(mlp(), heads=["head"], aperture={"conv*": 2.0, "*": 6.0}, evidence=["conv*", "*"], dense_patches=["conv*"])
    GPM(mlp(), heads=["head"], images={"conv*": 3})


def test_whole_numbers_do_for_settings():
    model = mlp()
    method = DFGP(model, heads=["head"], alpha=20)
    method.guard(optimizer := optim.SGD(model.parameters(), lr=0.1))
    method.begin_task(0, ONE)
    for x, y in method.watch(ONE):
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    method.end_task(ONE)


def replace(model):
    model[2] = nn.Linear(16, 3).double()


def add(model):
    model.append(nn.Linear(3, 3).double())


def remove(model):
    del model[2]


@pytest.mark.parametrize("change", [replace, add, remove], ids=lambda change: change.__name__)
@pytest.mark.parametrize("when", ["begin_task", "step", "end_task"])
def test_a_model_that_is_another_one_is_refused(change, when):
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    method = GPM(model, heads=["2"])
    method.guard(optimizer := optim.SGD(model.parameters(), lr=0.1))
    method.begin_task(0, ONE)
    if when == "begin_task":
        method.end_task(ONE)
    what = {"replace": "'2' was replaced", "add": "'3' was added", "remove": "'2' was removed"}[change.__name__]
    acts = {
        "begin_task": lambda: method.begin_task(1, TWO),
        "step": optimizer.step,
        "end_task": lambda: method.end_task(ONE),
    }
    change(model)
    with pytest.raises(RuntimeError, match=f"{what} after the method was attached"):
        acts[when]()


def test_heads_that_the_model_adds_and_modules_without_parameters_are_no_change():
    model = MultiHead(nn.Sequential(nn.Linear(8, 6), nn.ReLU()), 6, 3).double()
    method = GPM(model)
    for task in range(3):
        method.begin_task(task, ONE)
        model.backbone[1] = nn.Tanh()
        method.guard(optimizer := optim.SGD(model.parameters(), lr=0.1))
        train(model, ONE, optimizer, epochs=1)
        method.end_task(ONE)


@pytest.mark.filterwarnings("default")
def test_a_full_layer_is_told_of_once():
    model = mlp()
    method = CodeCL(model, heads=["head"], aperture=1e6)
    many = task_data(0, n=64)
    method.begin_task(0, many)
    with pytest.warns(UserWarning, match="inputs of 'first.weight', 'second.weight' are protected to 100.0 %"):
        method.end_task(many)
    method.begin_task(1, many)
    assert method._warned_full == {"first.weight", "second.weight"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        method.end_task(many)


@pytest.mark.parametrize("make", [EWC, CUBER, GPM, CodeCL], ids=lambda make: make.name)
def test_a_task_that_cannot_end_can_be_ended_again(make):
    model = mlp()
    method = make(model, heads=["head"])
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for task, data in enumerate((ONE, TWO)):
        method.begin_task(task, data)
        method.guard(optimizer)
        for batch in method.watch(data):
            nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
            optimizer.step()
            optimizer.zero_grad()
        before = method.state_dict()
        bad = [(x * float("nan"), y) for x, y in data]
        with pytest.raises(ValueError, match="NaN or infinite"):
            method.end_task(bad)
        assert_same(method.state_dict(), before)
        method.end_task(data)
    with torch.no_grad():
        assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
    penalty = method.penalty()
    assert penalty is None or bool(torch.isfinite(penalty))
