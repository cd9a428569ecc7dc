"""Keeping an optimizer's step inside the projected space.

A projected gradient protects old outputs only if the step is linear in it. What is projected depends on the optimizer:

    SGD, momentum, Nesterov                the gradient, as it is accumulated
    SGD with weight decay                  the update: W_old + (W_new − W_old)(I − C)
    Adam, AdamW and other adaptive ones    both; the update alone would protect, but learn badly

Anything else is refused, unless the user says what to project. Some weights always have their update projected:
``ProtectedWeight.always_restricts``, those of narrow dtypes, and those whose gradient turned out to be more than what
was delivered projected (``attach/probe.py``). What changes weights between steps is found too (``method/watch.py``).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import nn, optim

from codecl.attach import ProtectedWeight
from codecl.attach.projection import is_narrow
from codecl.method.groups import append, complete_momentum, drop, group_of
from codecl.method.replicas import Replicas
from codecl.method.watch import ProtectionWarning, WeightWatch, repair_weights, some

Project = Literal["gradient", "update", "both"]
Closure = Callable[[], Any]

ADAPTIVE = (
    optim.Adam,
    optim.AdamW,
    optim.NAdam,
    optim.RAdam,
    optim.Adamax,
    optim.Adagrad,
    optim.Adadelta,
    optim.RMSprop,
)


LEARNED = "codecl_learned"
"""The key of a parameter group: how many tasks had been learned when the state of its weights was made."""


class UnsafeOptimizer(ValueError):
    """An optimizer whose step would leave the projected space."""


class Learner(Protocol):
    """What a guard tells of its steps: a method."""

    @property
    def name(self) -> str: ...
    @property
    def replicas(self) -> Replicas: ...
    def learn(self, closure: Closure, parameters: Sequence[nn.Parameter]) -> Any: ...
    def after_step(self) -> None: ...
    def hold_frozen(self) -> None: ...


class Guard:
    """One optimizer and the weights it trains.

    Parameters of a task (the ``M`` of an effective weight) join the group of the weight they belong to, since a new
    group would break learning-rate schedulers. They never decay: while a step runs they stand in a copy of that group
    without weight decay.
    """

    def __init__(
        self,
        optimizer: optim.Optimizer,
        watches: Mapping[str, WeightWatch],
        project: Project | None,
        learner: Learner,
    ) -> None:
        if not isinstance(optimizer, optim.Optimizer):
            raise TypeError(f"guard takes a torch.optim.Optimizer; got {type(optimizer).__name__}.")
        if project not in (None, "gradient", "update", "both"):
            raise ValueError(f"project must be 'gradient', 'update' or 'both'; got {project!r}.")
        self.optimizer, self.project, self.learner = optimizer, project, learner
        self.weights: dict[nn.Parameter, ProtectedWeight] = {}
        self.extras: dict[nn.Parameter, nn.Parameter] = {}
        self.frozen: list[nn.Parameter] = []
        self.steps = 0
        self._before: dict[nn.Parameter, Any] = {}
        self._aside: list[tuple[dict[str, Any], list[nn.Parameter]]] = []
        self._replaced = False
        self._watches = watches
        self._modes_now: dict[nn.Parameter, Project] = {}
        self._task_extras: Mapping[nn.Parameter, Iterable[nn.Parameter]] = {}
        self._learned = 0
        self._match()
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def join(
        self, extras: Mapping[nn.Parameter, Iterable[nn.Parameter]], frozen: list[nn.Parameter], learned: int
    ) -> None:
        """Train ``extras``, each in the group of the weight it belongs to, and no earlier ones; never ``frozen``.

        ``learned`` tasks have been learned: what the optimizer kept when it were fewer is dropped at the next step.
        """
        self._rejoin()
        drop(self.optimizer, self.extras)
        self.extras, self._task_extras = {}, extras
        self.frozen, self.steps, self._learned = frozen, 0, learned
        self._add_extras(self.weights)

    def _add_extras(self, hosts: Iterable[nn.Parameter]) -> None:
        for host in hosts:
            for new in self._task_extras.get(host, ()):
                self.extras[new] = host
                append(group_of(self.optimizer, host), new, host, "extra")

    def _match(self) -> None:
        """Guard the protected weights that the optimizer has now: a group may have joined since the last step."""
        protected = {name: watch.weight for name, watch in self._watches.items()}
        check_not_replaced(protected)
        inside = {parameter for group in self.optimizer.param_groups for parameter in group["params"]}
        new = {w.parameter: w for w in protected.values() if w.parameter in inside.difference(self.weights)}
        if not new:
            return
        self.weights |= new
        for parameter, mode in self._modes().items():
            if parameter in new:
                new[parameter].projects_gradient, new[parameter].drops_noise = mode != "update", mode == "both"
        self._add_extras(new)

    def adopt(self, new: Iterable[nn.Parameter], hosts: Sequence[nn.Parameter]) -> None:
        """Train parameters that the model gained (a new head), in the group of the last of ``hosts`` that trains."""
        host = next((h for h in reversed(hosts) if group_of(self.optimizer, h) is not None), None)
        for parameter in new:
            if host is not None and group_of(self.optimizer, parameter) is None:
                append(group_of(self.optimizer, host), parameter, host, "next")

    def forget_state(self) -> None:
        """Clear what the optimizer kept about guarded weights: a momentum from before would move old outputs."""
        for group in self.optimizer.param_groups:
            self._forget_state_in(group)

    def _forget_state_in(self, group: dict[str, Any]) -> None:
        for parameter in group["params"]:
            if parameter not in self.weights and not any(parameter is p for p in self.frozen):
                continue
            self.optimizer.state.pop(parameter, None)

    def _drop_old_state(self) -> None:
        """Drop state from before the last task ended, also if it came back by ``optimizer.load_state_dict``."""
        for group in self.optimizer.param_groups:
            if group.get(LEARNED, 0) != self._learned:
                self._forget_state_in(group)
                group[LEARNED] = self._learned

    def replace(self) -> None:
        """Another optimizer trains these weights from now on."""
        self._rejoin()
        drop(self.optimizer, self.extras)
        self.extras, self._replaced = {}, True

    def release(self) -> None:
        """Give the optimizer back as it was found."""
        self._rejoin()
        drop(self.optimizer, self.extras)
        self.extras = {}
        for group in self.optimizer.param_groups:
            group.pop(LEARNED, None)
        for hook in self._hooks:
            hook.remove()

    def _modes(self) -> dict[nn.Parameter, Project]:
        """What is projected for each guarded weight, by what its group says now."""
        if self.project is not None or not self.weights:
            return dict.fromkeys(self.weights, self.project or "gradient")
        if type(self.optimizer) in ADAPTIVE:
            return dict.fromkeys(self.weights, "both")
        if type(self.optimizer) is not optim.SGD:
            raise UnsafeOptimizer(
                f"{type(self.optimizer).__name__} is not known to keep a projected gradient projected: only a step "
                "that is linear in the gradient does. Project its update as well, "
                "method.guard(optimizer, project='both'), or use SGD, Adam or AdamW."
            )
        return {
            parameter: "update" if group["weight_decay"] != 0 or _only_steps(self.weights[parameter]) else "gradient"
            for group in self.optimizer.param_groups
            for parameter in group["params"]
            if parameter in self.weights
        }

    def _before_step(
        self, _: optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self._make_ready()
        return self._let_learn(args, kwargs)

    def _let_learn(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The step's arguments with the closure that the method makes of the user's, which may be none."""
        given: Closure | None = args[1] if len(args) > 1 else kwargs.get("closure")  # the optimizer comes first
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        if given is None:
            with torch.enable_grad():
                self.learner.learn(_Done(self.learner.name), parameters)
            self._check_gradients()
            return args, kwargs

        def closure() -> Any:
            loss = self.learner.learn(given, parameters)
            self._check_gradients()
            return loss

        return ((args[0], closure), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": closure})

    def _make_ready(self) -> None:
        self._rejoin()
        self.learner.hold_frozen()
        self._match()
        if self._replaced and any(w.is_projected for w in self.weights.values()):
            raise UnsafeOptimizer(
                "this optimizer was replaced: method.guard() was called later with another one for the same weights. "
                "Step the newer one, or guard this one again."
            )
        self.steps += 1
        for parameter in self.frozen:
            parameter.grad = None
        self._drop_old_state()
        repair_weights(self._watches[side.name] for weight in self.weights.values() for side in weight.sides)
        self._before, self._modes_now = {}, self._modes()
        for parameter, mode in self._modes_now.items():
            weight = self.weights[parameter]
            if (mode != "update") != weight.projects_gradient:
                raise UnsafeOptimizer(
                    f"the weight decay of the group of '{weight.name}' changed after the optimizer was guarded. "
                    "Call method.guard(optimizer) again after changing it."
                )
            if weight.is_projected and (mode != "gradient" or weight.always_restricts):
                self._before[parameter] = weight.snapshot()
        self._set_aside()
        complete_momentum(self.optimizer)

    @torch.no_grad()
    def _check_gradients(self) -> None:
        """Where a gradient is more than what was delivered projected, project it, and the weight's steps from here on.

        Nobody knows how much of it has been projected: once more does no harm.
        """
        if self.project is not None:
            return
        shared = {  # the same on all processes, whatever one of them has found out
            weight.name: weight
            for parameter, weight in self.weights.items()
            if (self._modes_now[parameter] == "gradient" or weight.steps_only)
            and weight.projection is not None
            and not weight.always_restricts
        }
        if not self.learner.replicas.share_products({name: weight.probe for name, weight in shared.items()}):
            return
        watched = {name: w for name, w in shared.items() if self._modes_now[w.parameter] == "gradient"}
        there = {name: (w, G) for name, w in watched.items() if (G := w.parameter.grad) is not None}
        strange = self.learner.replicas.union(n for n, (w, G) in there.items() if not w.probe.accepts(w.matrices(G)))
        for weight, G in (there[name] for name in strange):
            weight.parameter.grad = weight.project(G)
            self._before[weight.parameter] = weight.snapshot()
            weight.steps_only, weight.projects_gradient = True, False
        if strange:
            warnings.warn(
                f"the gradient of {some(strange)} is more than the loss of the network gave: a loss term on the "
                "weights, noise or a hook, say. It was projected, and so is every step of these weights from here on, "
                "so that old outputs stay.",
                ProtectionWarning,
                stacklevel=5,
            )

    @torch.no_grad()
    def _after_step(self, *_: Any) -> None:
        self._rejoin()
        for parameter, before in self._before.items():
            self.weights[parameter].restrict(before)
        self._before = {}
        self.learner.after_step()
        for side in (side for weight in self.weights.values() for side in weight.sides):
            if side.projection is not None:
                side.probe.step()
                self._watches[side.name].note()

    def _set_aside(self) -> None:
        """Move the extras of each decaying group into a group of the same settings that does not decay."""
        for group in list(self.optimizer.param_groups):
            extras = [p for p in group["params"] if p in self.extras]
            if extras and group.get("weight_decay", 0) != 0:
                group["params"] = [p for p in group["params"] if p not in self.extras]
                aside = {key: value for key, value in group.items() if key != "param_names"}
                self.optimizer.param_groups.append({**aside, "params": extras, "weight_decay": 0.0})
                self._aside.append((group, extras))

    def _rejoin(self) -> None:
        for group, extras in reversed(self._aside):
            self.optimizer.param_groups.pop()
            group["params"].extend(extras)
        self._aside = []


class _Done:
    """Stands for the closure where the user has computed the gradients already."""

    def __init__(self, method: str) -> None:
        self.method, self.called = method, False

    def __call__(self) -> None:
        if self.called:
            raise RuntimeError(
                f"{self.method} computes the loss more than once in a step: pass it, optimizer.step(closure), "
                "where closure() calls zero_grad() and backward() and returns the loss."
            )
        self.called = True


def _only_steps(weight: ProtectedWeight) -> bool:
    """Whether a step has to be projected though it is linear in the gradient."""
    return weight.steps_only or is_narrow(weight.parameter)


def check_not_replaced(weights: Mapping[str, ProtectedWeight]) -> None:
    """Refuse a model whose parameters are other objects than those that the method attached to."""
    if replaced := [name for name, w in weights.items() if any(use.value is not w.parameter for use in w.uses)]:
        raise RuntimeError(
            f"the parameters of the model were replaced after the method was attached, '{replaced[0]}' for one: "
            "nothing protects the new ones. Load states without assign=True, or detach the method and attach a new one."
        )
