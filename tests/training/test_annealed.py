"""Annealed training in the loop: every method, every group of the optimizer, and the whole of SGD."""

import itertools
import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from codecl import API, CUBER, DFGP, GPM, SGP, TRGP, TRGPSD, CodeCL, Method
from codecl.methods import METHODS
from codecl.training.check import network, small_stream
from codecl.training.engine import Trainer
from codecl.training.plan import Plan
from codecl.training.schedule import AnnealedRule
from tests.training.storage import Interrupted, Storage

pytestmark = pytest.mark.slow

PLAN = Plan(
    epochs=2, batch_size=16, lr=0.05, rule="annealed", momentum=0.9, nesterov=True, weight_decay=0.01,
    evaluation_batch=24,
)  # fmt: skip
STEPS = 2 * 3  # 48 inputs in batches of 16
RATES = [AnnealedRule(0.05, 0.2).rate(k, STEPS) for k in range(STEPS)]


def train(make=Method, plan=PLAN, store=None, observers=()):
    trainer = Trainer(make(network()), small_stream(2), plan, store, observers)
    trainer.run()
    return trainer


def watched_rates(make, plan):
    """The learning rates of all groups in every step."""
    rates, optimizers = [], []

    def watched(model):
        method = make(model)
        guard, after_step = method.guard, method.after_step

        def guarded(optimizer, *rest):
            optimizers.append(optimizer)
            guard(optimizer, *rest)

        def stepped():
            rates.append([group["lr"] for group in optimizers[-1].param_groups])
            after_step()

        method.guard, method.after_step = guarded, stepped
        return method

    train(watched, plan)
    return rates


@pytest.mark.parametrize("name", METHODS)
def test_every_method_goes_through_the_rates_and_resumes_exactly(name):
    events, make = [], METHODS[name]
    whole = train(make, observers=(events.append,))
    epochs = [event for event in events if event["event"] == "epoch"]
    per_epoch = 6 if make.joint else 3
    rates = RATES if not make.joint else [AnnealedRule(0.05, 0.2).rate(k, 12) for k in range(12)]
    assert [e["lr"] for e in epochs] == [rates[per_epoch - 1], rates[-1]] * (1 if make.joint else 2)
    assert all(math.isfinite(e["loss"]) and math.isfinite(e["validation_loss"]) for e in epochs)
    for writes in itertools.count(1):
        store = Storage(writes)
        try:
            train(make, store=store)
            break
        except Interrupted:
            resumed = train(make, store=store)
        assert resumed.progress.accuracy == whole.progress.accuracy, writes
        for key, value in whole.model.state_dict().items():
            assert torch.equal(value, resumed.model.state_dict()[key]), (writes, key)
    assert writes == (1 + 2 if make.joint else 2 * (1 + 2)) + 1


@pytest.mark.parametrize("name", ["finetune", "code-cl", "trgp", "multitask"])
def test_the_rate_is_set_before_every_step_in_every_group(name):
    make = METHODS[name]

    class TwoGroups(Plan):
        """Weights and everything else apart, as a user may want them."""

        def new_optimizer(self, parameters):
            every = list(parameters)
            weights = {"params": [p for p in every if p.ndim > 1], "weight_decay": 0.1}
            others = {"params": [p for p in every if p.ndim == 1], "lr": 99.0}
            return torch.optim.SGD([weights, others], lr=7.0, momentum=0.9)

    plan = TwoGroups(epochs=2, batch_size=16, lr=0.05, rule="annealed", warm_up=0.5, evaluation_batch=24)
    steps = 12 if make.joint else 6
    expected = [[AnnealedRule(0.05, 0.5).rate(k, steps)] * 2 for k in range(steps)]
    assert watched_rates(make, plan) == expected * (1 if make.joint else 2)


def test_a_rule_of_ones_own():
    class Falling(AnnealedRule):
        def rate(self, step, steps):
            return self.lr / (1 + step)

    class Own(Plan):
        def new_rule(self):
            return Falling(self.lr)

    assert watched_rates(Method, Own(epochs=2, batch_size=16, lr=0.1)) == [[0.1 / (1 + k)] for k in range(6)] * 2


FULL = {
    "gpm": partial(GPM, threshold=1.0, samples=None),
    "sgp": partial(SGP, threshold=1.0, samples=None, alpha=1e12),
    "trgp": partial(TRGP, threshold=1.0, samples=None),
    "trgp-sd": partial(TRGPSD, threshold=1.0, samples=None),
    "dfgp": partial(DFGP, threshold=1.0, samples=None),
    "api": partial(API, threshold=1.0, samples=None),
    "cuber": partial(CUBER, threshold=1.0, samples=None, agreement=1.0),
    "code-cl": partial(CodeCL, aperture=1e5, samples=None, free_dims=2),
    "code-cl, norms of each task": partial(CodeCL, aperture=1e5, samples=None, free_dims=2, norm="per-task"),
    "code-cl, official": partial(CodeCL.official, aperture=1e5, samples=None, free_dims=2),
    "code-cl, own": partial(CodeCL.own, aperture=1e5, samples=None, free_dims=2),
}


@pytest.mark.parametrize("rule", ["annealed", "loss"])
@pytest.mark.parametrize("name", [*FULL, "finetune"])
def test_old_outputs_hold_under_momentum_and_weight_decay(name, rule):
    """Full protection, and an optimizer that remembers and shrinks: what the first task sees stays where it was."""
    x, seen, weights = small_stream(1).tasks[0].train.take(torch.arange(48))[0], [], []

    def look(event):
        if event["event"] == "task":
            with method.task(0), torch.no_grad():
                seen.append(method.model.eval()(x))
            weights.append(method.model.backbone.hidden.weight.detach().clone())

    method = FULL.get(name, Method)(network())
    Trainer(method, small_stream(2), replace(PLAN, rule=rule, epochs=4), None, (look,)).run()
    moved, scale = (seen[1] - seen[0]).abs().max(), seen[0].abs().max()
    assert not torch.equal(weights[0], weights[1])
    if name == "finetune":
        assert moved > 0.1 * scale  # else the test could not fail
    else:
        assert moved < 1e-4 * scale


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rule": "luck"}, "rule must be 'loss', 'accuracy' or 'annealed'; got 'luck'"),
        ({"keep": "all"}, "keep must be 'last' or 'best'; got 'all'"),
        ({"momentum": 0.0}, "nesterov needs a momentum above 0; got momentum = 0.0"),
    ],
)
def test_a_plan_is_checked(changed, message):
    with pytest.raises(ValueError, match=message):
        replace(PLAN, **changed)
