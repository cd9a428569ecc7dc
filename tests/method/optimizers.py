"""Every way to train that a guarded optimizer has to keep safe: how it is built, and how it steps."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn, optim
from torch.nn.functional import cross_entropy

from tests.methods.cases import Batches


def plain(model: nn.Module, batches: Batches, optimizer: optim.Optimizer, epochs: int) -> None:
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()


def keeping_zeros(model: nn.Module, batches: Batches, optimizer: optim.Optimizer, epochs: int) -> None:
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad(set_to_none=False)
            cross_entropy(model(x), y).backward()
            optimizer.step()


def clipped(model: nn.Module, batches: Batches, optimizer: optim.Optimizer, epochs: int) -> None:
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()


def clipped_by_value(model: nn.Module, batches: Batches, optimizer: optim.Optimizer, epochs: int) -> None:
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.05)
            optimizer.step()


def accumulated(model: nn.Module, batches: Batches, optimizer: optim.Optimizer, epochs: int) -> None:
    """A step for every two batches but the last, whose gradient is left over."""
    sequence = batches * epochs + batches[:1]
    for i, (x, y) in enumerate(sequence):
        (cross_entropy(model(x), y) / 2).backward()
        if i % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()


def with_closure(model: nn.Module, batches: Batches, optimizer: optim.Optimizer, epochs: int) -> None:
    for _ in range(epochs):
        for x, y in batches:

            def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                optimizer.zero_grad()
                loss = cross_entropy(model(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)


def scaled(model: nn.Module, batches: Batches, optimizer: optim.Optimizer, epochs: int) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            scaler.scale(cross_entropy(model(x), y)).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()


def scheduled(build: Callable[[optim.Optimizer, int], Any]) -> Callable[..., None]:
    def loop(model: nn.Module, batches: Batches, optimizer: optim.Optimizer, epochs: int) -> None:
        for group in optimizer.param_groups:  # a new schedule for each task
            group["lr"] = group.setdefault("initial_lr", group["lr"])
        scheduler = build(optimizer, epochs * len(batches))
        for _ in range(epochs):
            for x, y in batches:
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
                scheduler.step()

    return loop


def sgd(**settings: Any) -> Callable[[nn.Module], optim.Optimizer]:
    return lambda model: optim.SGD(model.parameters(), **{"lr": 0.05} | settings)


def of(kind: type[optim.Optimizer], **settings: Any) -> Callable[[nn.Module], optim.Optimizer]:
    return lambda model: kind(model.parameters(), **settings)


def grouped(kind: type[optim.Optimizer], **settings: Any) -> Callable[[nn.Module], optim.Optimizer]:
    """One group for each layer, of which the second decays and the last has a step of its own."""

    def build(model: nn.Module) -> optim.Optimizer:
        groups: Iterable[dict[str, Any]] = [
            {"params": list(model.first.parameters())},
            {"params": [*model.norm.parameters(), *model.second.parameters()], "weight_decay": 0.05},
            {"params": list(model.head.parameters()), "lr": 0.02},
        ]
        return kind(groups, **settings)

    return build


@dataclass(frozen=True)
class Training:
    build: Callable[[nn.Module], optim.Optimizer]
    loop: Callable[..., None] = plain
    project: str | None = None


def one_cycle(o: optim.Optimizer, steps: int) -> Any:
    return optim.lr_scheduler.OneCycleLR(o, max_lr=[0.1] * len(o.param_groups), total_steps=steps)


def cosine(o: optim.Optimizer, steps: int) -> Any:
    return optim.lr_scheduler.CosineAnnealingLR(o, steps)


def staircase(o: optim.Optimizer, steps: int) -> Any:
    return optim.lr_scheduler.StepLR(o, steps // 4, gamma=0.7)


TRAININGS = {
    "sgd": Training(sgd()),
    "momentum": Training(sgd(momentum=0.9)),
    "nesterov": Training(sgd(momentum=0.9, nesterov=True)),
    "weight decay": Training(sgd(lr=0.2, weight_decay=0.03)),
    "momentum and weight decay": Training(sgd(momentum=0.9, weight_decay=0.05)),
    "momentum and weight decay, foreach": Training(sgd(momentum=0.9, weight_decay=0.05, foreach=True)),
    "momentum, one by one": Training(sgd(momentum=0.9, foreach=False)),
    "adam": Training(of(optim.Adam, lr=0.01)),
    "adam, foreach": Training(of(optim.Adam, lr=0.01, foreach=True)),
    "adam, one by one": Training(of(optim.Adam, lr=0.01, foreach=False)),
    "adam with decay": Training(of(optim.Adam, lr=0.01, weight_decay=0.01)),
    "amsgrad": Training(of(optim.Adam, lr=0.01, amsgrad=True)),
    "adamw": Training(of(optim.AdamW, lr=0.01, weight_decay=0.1)),
    "nadam": Training(of(optim.NAdam, lr=0.01)),
    "radam": Training(of(optim.RAdam, lr=0.05)),
    "adamax": Training(of(optim.Adamax, lr=0.01)),
    "adagrad": Training(of(optim.Adagrad, lr=0.02)),
    "adadelta": Training(of(optim.Adadelta, lr=1.0)),
    "rmsprop": Training(of(optim.RMSprop, lr=0.01, momentum=0.5)),
    "clipping": Training(sgd(momentum=0.9), clipped),
    "clipping with decay": Training(sgd(lr=0.2, weight_decay=0.03), clipped),
    "clipping by value": Training(sgd(momentum=0.9), clipped_by_value, "both"),
    "accumulation": Training(sgd(momentum=0.9), accumulated),
    "accumulation with adam": Training(of(optim.Adam, lr=0.01), accumulated),
    "groups": Training(grouped(optim.SGD, lr=0.05, momentum=0.9)),
    "groups with adamw": Training(grouped(optim.AdamW, lr=0.01, weight_decay=0.0)),
    "step schedule": Training(sgd(momentum=0.9, weight_decay=0.05), scheduled(staircase)),
    "cosine schedule": Training(grouped(optim.SGD, lr=0.05, momentum=0.9), scheduled(cosine)),
    "one cycle": Training(sgd(momentum=0.9, weight_decay=0.01), scheduled(one_cycle)),
    "one cycle with adamw": Training(of(optim.AdamW, lr=0.01), scheduled(one_cycle)),
    "closure": Training(sgd(momentum=0.9, weight_decay=0.05), with_closure),
    "closure with adam": Training(of(optim.Adam, lr=0.01), with_closure),
    "grad scaler": Training(sgd(momentum=0.9), scaled),
    "grad scaler with adamw": Training(of(optim.AdamW, lr=0.01), scaled),
    "zeros for gradients": Training(sgd(momentum=0.9, weight_decay=0.05), keeping_zeros),
    "zeros for gradients, adam": Training(of(optim.Adam, lr=0.01, weight_decay=0.01), keeping_zeros),
}
