"""What every method promises whatever a training loop does: what is held stays, or the user hears of it."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.optim.swa_utils import AveragedModel

from codecl.attach import ProtectedWeight, UnseenUse
from codecl.method.watch import ProtectionWarning, strongly_held
from codecl.methods import Method, UnsafeOptimizer
from codecl.networks import MultiHead
from codecl.randomness import seeded
from codecl.training.check.setting import Make, Network, network, same_weights, small_stream
from codecl.training.stream import Batch

EPOCHS = 2
REFUSALS = ("after the method was attached", "when the method was attached", "inputs that it did not see")
"""Of errors by which a step is refused and that have no type of their own."""
STAYS = 1e-6
"""How far what is held may move, relative to the weight; beside ten times what the plainest loop moves."""


@dataclass
class Loop:
    """A method and an optimizer that it guards, and the batches of the task at hand."""

    method: Method
    optimizer: optim.Optimizer
    batches: list[Batch]

    @property
    def model(self) -> nn.Module:
        return self.method.model

    def learn(
        self,
        term: Callable[[], Tensor | float] = lambda: 0.0,
        after_backward: Callable[[], Any] = lambda: None,
        after_step: Callable[[], Any] = lambda: None,
        zero_grad: Callable[[], None] | None = None,
        net: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Some epochs, and what is done in them beside the usual."""
        self.model.train()
        for epoch in range(EPOCHS):
            for batch in self.method.watch(self.batches, epoch, EPOCHS):
                self.optimizer.step(lambda: self._gradients(batch, term, after_backward, zero_grad, net))  # noqa: B023
                after_step()

    def _gradients(self, batch: Batch, term: Any, after_backward: Any, zero_grad: Any, net: Any) -> float:
        (zero_grad or self.optimizer.zero_grad)()
        output = self.method.forward(self.model, batch) if net is None else net(batch[0])
        loss: Tensor = self.method.loss(output, batch) + term()
        loss.backward()  # type: ignore[no-untyped-call]
        after_backward()
        return float(loss)

    def weights(self) -> Iterator[ProtectedWeight]:
        for weight in self.method.weights.values():
            yield from weight.sides


def plain(loop: Loop) -> None:
    loop.learn()


def a_loss_term_on_the_weights(loop: Loop) -> None:
    loop.learn(term=lambda: 5e-3 * sum(p.square().sum() for p in loop.model.parameters()))


def noise_in_the_gradients(loop: Loop) -> None:
    def add() -> None:
        for p in loop.model.parameters():
            if p.grad is not None:
                p.grad += 1e-3 * torch.linspace(-1, 1, p.numel()).reshape(p.shape).to(p)

    loop.learn(after_backward=add)


def a_hook_on_a_weight(loop: Loop) -> None:
    hooks = [weight.parameter.register_hook(torch.sign) for weight in loop.weights()]  # type: ignore[no-untyped-call]
    loop.learn()
    for hook in hooks:
        hook.remove()


def a_group_that_joins_later(loop: Loop) -> None:
    held = {weight.parameter for weight in loop.weights()}
    loop.optimizer = optim.AdamW([p for p in loop.model.parameters() if p not in held], lr=0.01)
    loop.method.guard(loop.optimizer)
    loop.optimizer.add_param_group({"params": list(held), "weight_decay": 0.1})
    loop.learn()


def a_second_optimizer(loop: Loop) -> None:
    other = optim.AdamW(loop.model.parameters(), lr=0.01)
    loop.learn(after_step=other.step)


def parameters_that_were_replaced(loop: Loop) -> None:
    loop.model.load_state_dict(copy.deepcopy(loop.model.state_dict()), assign=True)
    loop.optimizer = optim.AdamW(loop.model.parameters(), lr=0.01)
    loop.learn()


def a_momentum_from_before(loop: Loop) -> None:
    def parameters() -> Iterator[nn.Parameter]:
        return (p for group in loop.optimizer.param_groups for p in group["params"])

    old = optim.SGD([nn.Parameter(p.detach().clone()) for p in parameters()], lr=0.05, momentum=0.9)
    for p in old.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    old.step()
    loop.optimizer.load_state_dict(old.state_dict())
    loop.learn()


def weights_changed_by_hand(loop: Loop) -> None:
    @torch.no_grad()
    def decay() -> None:
        for p in loop.model.parameters():
            p.mul_(0.99)

    loop.learn(after_step=decay)


def weights_changed_once(loop: Loop) -> None:
    loop.learn()
    with torch.no_grad():
        for weight in loop.weights():
            weight.parameter.clamp_(-0.05, 0.05)


def frozen_parts_that_train_again(loop: Loop) -> None:
    for p in loop.model.parameters():
        p.requires_grad_(True)
    loop.learn()


def a_copy_that_uses_the_weights(loop: Loop) -> None:
    """As a trace does that was made before."""
    bare = loop.method.export(0).train()
    loop.learn(net=lambda x: torch.func.functional_call(bare, dict(loop.model.named_parameters()), (x,)))


def an_average_that_is_loaded(loop: Loop) -> None:
    average = AveragedModel(loop.model)
    loop.learn(after_step=lambda: average.update_parameters(loop.model))
    loop.model.load_state_dict(average.module.state_dict())


def a_use_in_training_only(loop: Loop) -> None:
    loop.learn()


def a_buffer_that_changes(loop: Loop) -> None:
    loop.learn()


def narrow_weights(loop: Loop) -> None:
    loop.learn()


def clipped(loop: Loop) -> None:
    loop.learn(after_backward=lambda: nn.utils.clip_grad_norm_(loop.model.parameters(), 0.1))


def several_losses(loop: Loop) -> None:
    (x, _), *_ = loop.batches
    loop.learn(term=lambda: loop.model(x).square().mean(), after_backward=lambda: loop.model(x).mean().backward())


def noise_in_the_head(loop: Loop) -> None:
    def add() -> None:
        for row in loop.method.layers.of_role("head"):
            if row.parameter.grad is not None:
                row.parameter.grad += 0.1

    loop.learn(after_backward=add)


def weights_that_come_back(loop: Loop) -> None:
    """As the best epoch does, or after a step of sharpness-aware training."""
    best = copy.deepcopy(loop.model.state_dict())
    loop.learn()
    loop.model.load_state_dict(best)
    loop.learn()


class TrainsByHand(Network):
    """Uses a weight past its module, while it trains."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        x = self.norm(self.conv(x)).relu().flatten(1)
        x = nn.functional.linear(x, self.hidden.weight, self.hidden.bias)
        out: Tensor = self.last(self.batch_norm(x).relu()).relu()
        return out


class HasBuffer(Network):
    """Subtracts a mean of its own from the inputs, which follows them."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(2, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.5)
        return super().forward(x - self.mean)


FOREIGN: dict[Callable[[Loop], None], Callable[[], nn.Module]] = {
    **dict.fromkeys(
        (
            a_loss_term_on_the_weights, noise_in_the_gradients, a_hook_on_a_weight, a_group_that_joins_later,
            a_second_optimizer, parameters_that_were_replaced, a_momentum_from_before, weights_changed_by_hand,
            weights_changed_once, frozen_parts_that_train_again, a_copy_that_uses_the_weights,
            an_average_that_is_loaded,
        ),
        network,
    ),
    a_use_in_training_only: lambda: MultiHead(TrainsByHand(), Network.features, 3),
    a_buffer_that_changes: lambda: MultiHead(HasBuffer(), Network.features, 3),
    narrow_weights: lambda: network().bfloat16(),
}  # fmt: skip
ORDINARY = (plain, clipped, several_losses, noise_in_the_head, weights_that_come_back)


def check_no_loop_moves_what_is_held(make: Make) -> None:
    """Whatever a loop does, what is held of old tasks stays, or the step is refused, or there is a warning."""
    if not make(network()).protects:
        return
    allowed = STAYS + 10 * _try(make, plain, network).moved
    for loop, model in FOREIGN.items():
        found = _try(make, loop, model)
        rounding = 4 * torch.finfo(torch.bfloat16).eps if loop is narrow_weights else 0.0
        silent = found.moved > allowed + rounding and not found.told
        assert not silent, f"{_words(loop)}: what is held moved by {found.moved:.1e}, and nothing was said"


def check_ordinary_loops_are_not_warned_of(make: Make) -> None:
    """Clipping, further losses, noise in a head and restored weights bring no warning."""
    for loop in ORDINARY:
        told = _try(make, loop, network).told
        assert not told, f"{_words(loop)}: {told}"


def check_the_model_clears_all_gradients(make: Make) -> None:
    """``model.zero_grad()`` clears what ``optimizer.zero_grad()`` does."""
    models = []
    for by_model in (False, True):
        model = network()
        _try(make, (lambda loop: loop.learn(zero_grad=loop.model.zero_grad)) if by_model else plain, lambda: model)  # noqa: B023
        models.append(model)
    same_weights(models[1], models[0], "gradients were cleared by the model")


@dataclass(frozen=True)
class Found:
    """What came of a loop: how far it moved what is held, relative to the weights, and what was said of it."""

    moved: float
    told: str


def _try(make: Make, run: Callable[[Loop], None], model: Callable[[], nn.Module]) -> Found:
    """Learn a task, and a second one in the loop ``run``."""
    with warnings.catch_warnings(record=True) as caught, seeded(0, "check", "loops"):
        warnings.simplefilter("always")
        method = make(model())
        optimizer = optim.SGD(method.model.parameters(), lr=0.05, momentum=0.9)
        method.guard(optimizer)
        dtype = next(method.model.parameters()).dtype
        tasks = [_batches(t, dtype) for t in range(2)]
        try:
            loop = Loop(method, optimizer, tasks[0])
            method.begin_task(0, tasks[0])
            loop.learn()
            method.end_task(tasks[0])
            loop.batches = tasks[1]
            method.begin_task(1, tasks[1])
            before = {w: (w.snapshot(), copy.deepcopy(w.projection)) for w in loop.weights()}
            old = _own_buffers(method)
            run(loop)
            method.end_task(tasks[1])
        except (UnsafeOptimizer, UnseenUse) as refused:
            return Found(math.inf, str(refused))
        except RuntimeError as error:
            if not any(words in str(error) for words in REFUSALS):
                raise
            return Found(math.inf, str(error))
        moved = [_held(weight, *then) for weight, then in before.items()]
        moved += [float(not torch.equal(value, old[name])) for name, value in _own_buffers(method).items()]
    told = [str(w.message) for w in caught if issubclass(w.category, ProtectionWarning)]
    return Found(max(moved, default=0.0), told[0] if told else "")


@torch.no_grad()
def _held(weight: ProtectedWeight, before: Any, projection: Any) -> float:
    if projection is None:
        return 0.0
    change = weight.difference(before).double()
    return float(strongly_held(change, projection).norm() / weight.parameter.double().norm())


def _own_buffers(method: Method) -> dict[str, Tensor]:
    """What the first task sees of the buffer of ``HasBuffer``."""
    with method.task(0):
        return {name: value.clone() for name, value in method.model.named_buffers() if name == "backbone.mean"}


def _batches(task: int, dtype: torch.dtype) -> list[Batch]:
    x, y = small_stream(task + 1).tasks[task].train.take(torch.arange(48))
    return [(x[i : i + 16].to(dtype), y[i : i + 16]) for i in range(0, 48, 16)]


def _words(loop: Callable[[Loop], None]) -> str:
    return loop.__name__.replace("_", " ")
