"""The battery passes on our methods, and fails on methods that break a promise."""

import warnings

import pytest
import torch

from codecl import CodeCL, Method, ProtectionWarning
from codecl.training.check import CHECKS, check_method

pytestmark = pytest.mark.slow

METHODS = {
    "finetune": Method,
    "code-cl": lambda model: CodeCL(model, aperture=20.0, free_dims=4, overlap=0.05),
    "code-cl official": lambda model: CodeCL.official(model, free_dims=4, smallest=8, overlap=0.05),
    "code-cl per-task": lambda model: CodeCL(model, norm="per-task", bias="per-task", free_dims=4, overlap=0.05),
    "code-cl free": lambda model: CodeCL(model, norm="free", bias="free"),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
def test_our_methods_keep_every_promise(make, check):
    check(make)


class ForgetsMemory(CodeCL):
    def memory_state(self):
        return {}


class DrawsRandomNumbers(Method):
    def remember(self, loader):
        torch.rand(1)


class LeavesForward(Method):
    def detach(self):
        super().detach()
        self.model.backbone.forward = lambda x: x


class MovesOldHeads(Method):
    def begin_task(self, task, loader=None):
        super().begin_task(task, loader)
        with torch.no_grad():
            self.model.heads[0].weight.add_(1.0)


class PerturbsTheFirstTask(Method):
    def begin_task(self, task, loader=None):
        super().begin_task(task, loader)
        with torch.no_grad():
            self.model.backbone.last.weight.mul_(0.9)


class ReportsNonsense(Method):
    def bytes(self):
        return {"memory": -1, "per_task": 0}


class ExportsAnother(Method):
    def export(self, task):
        plain = super().export(task)
        with torch.no_grad():
            plain.backbone.last.weight.add_(1.0)
        return plain


class LosesWhatItLearns(CodeCL):
    def state_dict(self, within_task=False, replay=True):
        state = super().state_dict(within_task, replay)
        return state | {"parameters": [torch.zeros_like(p) for p in state["parameters"]]} if within_task else state


class KeepsWeights(Method):
    """Remembers a weight of every task."""

    kept = ()

    def remember(self, loader):
        self.kept = (*self.kept, self.model.backbone.hidden.weight.detach().clone())

    def memory_state(self):
        return {"kept": list(self.kept)}

    def load_memory(self, state):
        self.kept = tuple(state["kept"])


class RemembersBeforeItLooks(KeepsWeights):
    """Remembers a weight, whatever it is, though the task cannot end."""

    def end_task(self, loader=None):
        self.remember(loader)
        super().end_task(loader)


class BeginsWithWhatItFinds(Method):
    """Puts zeros in the place of NaN, so that nobody sees that the network diverged."""

    def begin_task(self, task, loader=None):
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.nan_to_num_()
        super().begin_task(task, loader)


class CountsBeforeItFails(KeepsWeights):
    """Remembers something before it has read all of the data."""

    def remember(self, loader):
        super().remember(loader)
        if not all(bool(batch[0].isfinite().all()) for batch in loader):
            raise ValueError("NaN")


class BeginsBeforeItFails(KeepsWeights):
    """The same, as a task begins."""

    plain_first_task = False

    def prepare(self, loader):
        self.kept = (*self.kept, torch.zeros(1))
        list(loader)
        return {}


class WantsFloats(Method):
    def __init__(self, model, *, strength=2.0, **common):
        super().__init__(model, **common)
        self.strength = torch.full((2,), strength)
        if not self.strength.is_floating_point():
            raise TypeError("a float is needed")


class WalksOverAllTasks(Method):
    def task(self, task):
        for _ in self.tasks:
            repr(task)
        return super().task(task)


class Freeing(CodeCL):
    def __init__(self, model, **common):
        super().__init__(model, aperture=20.0, free_dims=4, overlap=0.05, **common)


class TrustsEveryGradient(Freeing):
    def guard(self, optimizer, project=None):
        super().guard(optimizer, "gradient")


class WarnsOfNothing(Freeing):
    def after_step(self):
        warnings.warn("something moved", ProtectionWarning, stacklevel=2)


class LeavesGradients(Freeing):
    def begin_task(self, task, loader=None):
        super().begin_task(task, loader)
        vars(self.model).pop("zero_grad", None)


class CoarseInHalfPrecision(Method):
    """Describes a rank that follows the dtype of what the layers see."""

    rank = 0

    def remember(self, loader):
        seen = []
        hook = self.model.backbone.last.register_forward_hook(lambda _, args, out: seen.append(out.dtype))
        for batch in loader:
            self.forward(self.model, batch)
        hook.remove()
        self.rank = 40 if torch.bfloat16 in seen else 100

    def memory_summary(self):
        return {"backbone.last.weight": {"rank": self.rank}}


BROKEN = {
    TrustsEveryGradient: "check_no_loop_moves_what_is_held",
    WarnsOfNothing: "check_ordinary_loops_are_not_warned_of",
    LeavesGradients: "check_the_model_clears_all_gradients",
    RemembersBeforeItLooks: "check_weights_that_are_not_finite_are_not_remembered",
    BeginsWithWhatItFinds: "check_a_task_is_not_begun_over_weights_that_are_not_finite",
    CountsBeforeItFails: "check_a_failed_end_can_be_repeated",
    BeginsBeforeItFails: "check_a_failed_begin_can_be_repeated",
    WantsFloats: "check_whole_numbers_serve_as_settings",
    WalksOverAllTasks: "check_a_switch_costs_the_same_after_many_tasks",
    CoarseInHalfPrecision: "check_half_precision_remembers_what_full_precision_does",
    ForgetsMemory: "check_state_is_plain",
    DrawsRandomNumbers: "check_random_state_is_untouched",
    LeavesForward: "check_model_is_handed_back_clean",
    MovesOldHeads: "check_other_heads_are_untouched",
    PerturbsTheFirstTask: "check_first_task_is_plain",
    ReportsNonsense: "check_memory_is_reported",
    ExportsAnother: "check_export_equals_the_task",
}


@pytest.mark.parametrize(("method", "name"), BROKEN.items(), ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_promise_is_noticed(method, name):
    check = next(check for check in CHECKS if check.__name__ == name)
    with pytest.raises((AssertionError, ValueError, TypeError)):
        check(method)


def test_check_method_runs_them_all_and_stops_at_the_first_failure(monkeypatch):
    some = [check for check in CHECKS if check.__name__ in ("check_state_is_plain", "check_memory_is_reported")]
    monkeypatch.setattr("codecl.training.check.CHECKS", some)  # all of them have their turn above
    assert check_method(Method) == ["check_state_is_plain", "check_memory_is_reported"]
    with pytest.raises(AssertionError) as refused:
        check_method(ReportsNonsense)
    assert str(refused.value) == (
        "finetune breaks a promise, check_memory_is_reported: ``bytes()`` gives whole numbers that are not negative, "
        "and no less for all than for a task. bytes() is {'memory': -1, 'per_task': 0}"
    )


def test_a_run_that_cannot_resume_exactly_is_noticed():
    check = next(check for check in CHECKS if check.__name__ == "check_resume_equals_no_interruption")

    class Restless(Method):
        """Keeps a number that its state does not say, and lets it work on the weights."""

        steps = 0

        def begin_task(self, task, loader=None):
            super().begin_task(task, loader)
            self.steps += 1

        def end_task(self, loader=None):
            with torch.no_grad():
                self.model.backbone.last.weight.mul_(1 + 0.1 * self.steps)
            super().end_task(loader)

    with pytest.raises(AssertionError, match="stopped after checkpoint"):
        check(Restless)
