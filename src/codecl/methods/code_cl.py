"""CODE-CL: conceptor-based gradient projection (Apolinario, Choudhary, Roy; ICCV 2025).

Algorithm 1, for every layer, with ``C`` the conceptor of the inputs of all past tasks:

    before task t     C_pre = conceptor of the new inputs; C_and = C_pre ∧ C                  lines 3–5
                      if Θ(C_and) / Θ(C) > ε:   W_eff = W + W U M Uᵀ,  U = top K of C_and     lines 6–8
    during task t     ∇W ← ∇W (I − C);  M is free                                             lines 16–19
    after task t      C ← C ∨ conceptor of the inputs                                         lines 21–26

The paper and its published implementation differ; every difference is an argument, and ``CodeCL.paper`` and
``CodeCL.official`` fix them all. Two habits of the implementation are not reproduced, being artefacts of its
arithmetic: singular values clamped to [1e-8, 1 − 1e-7], and arbitrary directions that fill up ``U`` where ``C_and`` has
fewer than ``K``.

``CodeCL.own`` goes beyond the paper. In place of lines 5–8 a task has weights of its own where the memory holds back:

    W_eff = W + B F,  F = Vᵀ C^½          V: the directions in which the rows X C^½ of the new inputs lie

``W`` learns ``∇W (I − C)`` for all tasks, and ``B`` what the memory takes, ``∇W C``, for this one: together they learn
what fine-tuning would, and old tasks lose nothing by it (``algebra/taken.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from statistics import fmean
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from codecl.algebra import Conceptor, Moments
from codecl.algebra.adaptation import adapt_apertures
from codecl.algebra.taken import nearest_in, taken_factor
from codecl.algebra.tolerances import INTERSECTION, WORKING_DTYPE
from codecl.attach import EffectiveWeight, Mixing, Own, ProtectedWeight, capture_moments, listen, project_conceptors
from codecl.layers import LayerKind, moments_of
from codecl.method.hooks import Presets
from codecl.method.memory_summary import nonzero_columns, spectrum
from codecl.method.method import Method
from codecl.method.settings import by_weight, check, check_patterns, matching
from codecl.method.state import ForeignState, check_directions
from codecl.randomness import method_seed

PAPER: dict[str, Any] = {
    "before": "previous",
    "after": "shared",
    "replace": False,
    "random_start": False,
    "hold": False,
    "gain": 0.0,
    "minimum": 0.0,
    "smallest": None,
    "closed": (),
    "dense_patches": (),
}
OFFICIAL: dict[str, Any] = {
    "before": "shared",
    "after": "effective",
    "replace": True,
    "random_start": True,
    "hold": True,
    "gain": 0.95,
    "minimum": 0.2,
    "smallest": 50,
    "closed": ("*shortcut*",),
    "dense_patches": ("conv1.weight", "backbone.conv1.weight"),
}
OWN: dict[str, Any] = PAPER | {"own_share": 0.99, "after": "effective", "norm": "per-task"}


class CodeCL(Method):
    """Protects the inputs of past tasks by conceptors, and frees the directions that the new task shares with them.

    ==============  ==================================================================================================
    aperture        α: how strongly past inputs are protected; one number, or a mapping from name patterns of weights
    free_dims       K: how many shared directions are freed
    overlap         ε: the capacity ratio Θ(C_and)/Θ(C) above which they are
    own_share       the task has weights of its own in the directions that hold this share of what the memory takes from
                    its inputs, whatever ``free_dims``, ``overlap`` and ``tolerance`` are; None: these say what is freed
    samples         how many inputs a conceptor is fitted to, in whole batches; None for all
    before          under which weights the new inputs are seen: ``previous`` task's effective ones, or ``shared``
    after           under which weights the learned inputs are seen: ``shared``, or the task's ``effective`` ones; with
                    ``shared``, what lies behind a layer that freed directions is held less firmly for this task
    replace         the shared component is replaced by the mixture, ``W − W U Uᵀ + W U M Uᵀ``, not added to
    random_start    M starts uniform in ±1/√K, not at zero
    hold            a replaced component gives the weight of a Linear layer no gradient
    gain            the aperture grows until this share of the input norm passes the conceptor; 0 for never
    minimum         singular values of C below this are forgotten
    tolerance       β of Algorithm 2: how close directions must be to count as shared
    smallest        a Linear layer of no more inputs is never freed, nor a convolution of no more than K; None: all are
    closed          name patterns of weights that are never freed
    dense_patches   name patterns of convolutions whose patches are taken at stride 1, whatever their own stride
    seed            of the random start
    ==============  ==================================================================================================
    """

    name: ClassVar[str] = "code-cl"
    sharded: ClassVar[bool] = True
    presets: ClassVar[Presets] = {"paper": PAPER, "official": OFFICIAL, "own": OWN}
    protects: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        *,
        aperture: float | Mapping[str, float] = 6.0,
        free_dims: int = 80,
        overlap: float = 0.5,
        own_share: float | None = None,
        samples: int | None = 125,
        before: Literal["previous", "shared"] = "previous",
        after: Literal["shared", "effective"] = "shared",
        replace: bool = False,
        random_start: bool = False,
        hold: bool = False,
        gain: float = 0.0,
        minimum: float = 0.0,
        tolerance: float = INTERSECTION,
        smallest: int | None = None,
        closed: Sequence[str] = (),
        dense_patches: Sequence[str] = (),
        seed: int = 0,
        **common: Any,
    ) -> None:
        check(free_dims >= 0, "free_dims", free_dims, "a number of directions, 0 or more")
        check(0 <= overlap <= 1, "overlap", overlap, "a ratio of capacities in [0, 1]")
        check(own_share is None or 0 < own_share <= 1, "own_share", own_share, "a share in (0, 1], or None")
        mixes = replace or random_start or hold
        check(own_share is None or not mixes, "own_share", own_share, "None beside replace, random_start or hold")
        check(samples is None or samples > 0, "samples", samples, "a positive number of inputs, or None for all")
        check(before in ("previous", "shared"), "before", before, "'previous' or 'shared'")
        check(after in ("shared", "effective"), "after", after, "'shared' or 'effective'")
        check(0 <= gain < 1, "gain", gain, "a share in [0, 1); 0 for no adaptation")
        check(0 <= minimum < 1, "minimum", minimum, "a singular value in [0, 1)")
        check(0 <= tolerance < 1, "tolerance", tolerance, "1 − cos θ in [0, 1)")
        check(smallest is None or isinstance(smallest, int), "smallest", smallest, "a number of inputs, or None")
        apertures = aperture.values() if isinstance(aperture, Mapping) else [aperture]
        check(all(0 < a < float("inf") for a in apertures), "aperture", aperture, "a finite number above 0")
        self._apertures = aperture
        self.free_dims, self.overlap, self.own_share, self.samples = free_dims, overlap, own_share, samples
        self.before, self.after = before, after
        self.replace, self.random_start, self.hold = replace, random_start, hold
        self.gain, self.minimum, self.tolerance = gain, minimum, tolerance
        self.smallest, self.closed, self.dense_patches, self.seed = smallest, closed, dense_patches, seed
        self.memory: dict[str, list[Conceptor]] = {}
        super().__init__(model, **common)

    @classmethod
    def own(cls, model: nn.Module, **settings: Any) -> Self:
        """Beyond the paper: what the memory takes from a new task, the task learns in weights of its own."""
        return cls(model, **(cls.preset("own") | settings))

    def examine(self) -> None:
        self.aperture = by_weight("aperture", self._apertures, self.weights)
        check_patterns("closed", self.closed, self.weights)
        published = OFFICIAL["dense_patches"]  # the names of its own networks, which others need not have
        check_patterns("dense_patches", [name for name in self.dense_patches if name not in published], self.weights)

    def prepare(self, loader: Iterable[Any] | None) -> dict[str, EffectiveWeight]:
        """Lines 3–12: how the new task overlaps with the past, and what that frees."""
        batches = self._batches(loader)
        with self.shared_weights() if self.before == "shared" else nullcontext():
            seen = self._seen(batches)
            if self.own_share is not None:
                owned = {name: self._own(name, several) for name, several in seen.items() if self._may_free(name)}
                return {name: own for name, own in owned.items() if own.B.numel()}
            fitted = self._fit(seen, batches)
        C_pre = {name: [C.cut(self.minimum) for C in pre] for name, pre in fitted.items()}
        changes: dict[str, EffectiveWeight] = {}
        for name, pre in C_pre.items():
            if not self._may_free(name):
                continue
            C_and = [new.meet(C, self.tolerance) for new, C in zip(pre, self.memory[name], strict=True)]
            ratios = [_ratio(shared, C) for shared, C in zip(C_and, self.memory[name], strict=True)]
            U = [C.top(self.free_dims if ratio > self.overlap else 0) for C, ratio in zip(C_and, ratios, strict=True)]
            self.note(name, overlap=fmean(ratios), shared=fmean(C.rank for C in C_and))
            if any(directions.shape[1] for directions in U):
                changes[name] = self._mixing(self.weights[name], U)
        return changes

    def remember(self, loader: Iterable[Any] | None) -> None:
        """Lines 21–26: the inputs of the learned task join the past."""
        batches = self._batches(loader)
        with self.shared_weights() if self.after == "shared" else nullcontext():
            C_post = self._fit(self._seen(batches), batches)
        merged = {
            name: [C | new for C, new in zip(self.memory[name], post, strict=True)] if name in self.memory else post
            for name, post in C_post.items()
        }
        self.memory |= {name: [C.cut(self.minimum) for C in of_layer] for name, of_layer in merged.items()}
        self._protect()

    def memory_state(self) -> dict[str, Any]:
        """The factors of ``C`` by weight, none for a weight that was never called."""
        return {"factors": {name: [C.factor for C in self.memory.get(name, ())] for name in self.weights}}

    def load_memory(self, state: Mapping[str, Any]) -> None:
        memory: dict[str, list[Conceptor]] = {}
        for name, weight in self.weights.items():
            if factors := [factor.to(weight.parameter.device) for factor in state["factors"][name]]:
                check_directions(name, weight.shape, factors)
                memory[name] = [Conceptor.from_tensors({"factor": F, "rest": torch.tensor(0)}) for F in factors]
        self.memory = memory
        self._protect()

    def effective_weight(self, name: str, state: Mapping[str, Any]) -> EffectiveWeight:
        if ("F" in state) != (self.own_share is not None):
            kinds = "own weights B F", "mixtures M"
            theirs, ours = kinds if "F" in state else kinds[::-1]
            raise ForeignState(
                f"'{name}' has {theirs} in the state, and {ours} here: make the method in the same reading "
                "(own_share), CodeCL.own or CodeCL.paper."
            )
        if self.own_share is None:
            return super().effective_weight(name, state)
        (g, o, d), F, B = self.weights[name].shape, state["F"], state["B"]
        if F.shape != (g, F.shape[1], d) or B.shape != (g, o, F.shape[1]):
            found = [list(F.shape), list(B.shape)]
            raise ForeignState(f"'{name}', {[g, o, d]}, has own weights F and B of the shapes {found} in the state.")
        return Own.from_state(state, like=self.weights[name].parameter)

    def describe(self, name: str) -> dict[str, Any]:
        """How many directions the last task freed; rank, capacity Θ(C) and spectrum of what is remembered."""
        change = self.effective.get(name)
        freed = change.U if isinstance(change, Mixing) else change.F.mT if isinstance(change, Own) else None
        found: dict[str, Any] = {"freed": nonzero_columns(freed) if freed is not None else 0}
        if C := self.memory.get(name):
            found |= {"rank": fmean(c.rank for c in C), "capacity": fmean(c.capacity for c in C)}
            found["spectrum"] = spectrum(c.singular_values for c in C)
        return found

    def _protect(self) -> None:
        """``∇W ← ∇W (I − C)`` from here on (line 17)."""
        for name, weight in self.weights.items():
            C = self.memory.get(name)
            weight.projection = project_conceptors(C, weight.parameter) if C is not None else None

    def _batches(self, loader: Iterable[Any] | None) -> Iterable[Any]:
        """The inputs to fit to; the adaptation of apertures reads them several times."""
        return list(self.sample(loader)) if self.gain else self.sample(loader)

    def _seen(self, batches: Iterable[Any]) -> dict[str, list[Moments]]:
        return capture_moments(self.model, self.weights, batches, self.forward, self._moments)

    def _fit(self, seen: Mapping[str, list[Moments]], batches: Iterable[Any]) -> dict[str, list[Conceptor]]:
        """Equation 2 for what each weight was fed, at its aperture, which grows to pass ``gain``."""
        fitted = {name: [Conceptor.fit(m, self.aperture[name]) for m in several] for name, several in seen.items()}
        return self._adapt(fitted, batches) if self.gain else fitted

    def _adapt(self, fitted: dict[str, list[Conceptor]], batches: Iterable[Any]) -> dict[str, list[Conceptor]]:
        def see_rows(see: Callable[[tuple[str, int], Tensor], None]) -> None:
            def add(weight: ProtectedWeight, kind: LayerKind, x: Any) -> None:
                for stack in self._rows(kind, x):
                    for i, rows in enumerate(stack):
                        see((weight.name, i), rows)

            listen(self.model, self.weights, batches, add, self.forward)

        by_matrix = {(name, i): C for name, several in fitted.items() for i, C in enumerate(several)}
        adapted = adapt_apertures(by_matrix, self.gain, see_rows)
        return {name: [adapted[name, i] for i in range(len(several))] for name, several in fitted.items()}

    def _moments(self, weight: ProtectedWeight, kind: LayerKind, x: Any) -> Iterator[list[Moments]]:
        for piece in kind.split(x):
            yield moments_of(kind.patches(piece, stride=1)) if self._is_dense(kind) else kind.moments(piece)

    def _rows(self, kind: LayerKind, x: Any) -> Iterator[Any]:
        for piece in kind.split(x):
            yield kind.patches(piece, stride=1) if self._is_dense(kind) else kind.rows(piece)

    def _is_dense(self, kind: LayerKind) -> bool:
        return bool(kind.kernel) and bool(matching(kind.full_name, self.dense_patches))

    def _may_free(self, name: str) -> bool:
        """The gates beside the overlap: a past, sizes and names."""
        weight = self.weights[name]
        _, _, d = weight.shape
        mixes = self.own_share is None
        limit = self.free_dims if mixes and weight.kind.kernel else self.smallest
        large = self.smallest is None or limit is None or d > limit
        return name in self.memory and large and not (mixes and self.free_dims == 0) and not matching(name, self.closed)

    def _own(self, name: str, seen: list[Moments]) -> Own:
        """``W + B F``, padded to the widest with zeros; ``B`` starts from what the last task had of its own."""
        like, (g, o, d) = self.weights[name].parameter, self.weights[name].shape
        factors = [taken_factor(C, m, self.own_share or 1.0) for C, m in zip(self.memory[name], seen, strict=True)]
        last, k = self.effective.get(name), max(len(F) for F in factors)
        before = last.added() if isinstance(last, Own) else None
        F = torch.zeros(g, k, d, dtype=WORKING_DTYPE, device=factors[0].device)
        B = torch.zeros(g, o, k, dtype=WORKING_DTYPE, device=factors[0].device)
        for i, of_matrix in enumerate(factors):
            F[i, : len(of_matrix)] = of_matrix
            if before is not None:
                B[i, :, : len(of_matrix)] = nearest_in(of_matrix, before[i])
        return Own(F.to(like), B.to(like))

    def _mixing(self, weight: ProtectedWeight, directions: list[Tensor]) -> Mixing:
        """``U`` of all matrices, padded to the widest with zeros, which do nothing; and ``M`` at its start."""
        like, K = weight.parameter, max(U.shape[1] for U in directions)
        U = torch.zeros(len(directions), weight.shape[2], K, dtype=like.dtype, device=like.device)
        for i, columns in enumerate(directions):
            U[i, :, : columns.shape[1]] = upright(columns) if self.random_start else columns
        M = torch.zeros(len(directions), K, K, dtype=like.dtype)
        if self.random_start:
            generator = torch.Generator().manual_seed(method_seed(self.seed, len(self.tasks), weight.name))
            M.uniform_(-(K**-0.5), K**-0.5, generator=generator)
        hold = self.hold and not weight.kind.kernel
        return Mixing(U, M.to(like.device), self.replace, hold)


def upright(U: Tensor) -> Tensor:
    """``U`` with the largest entry of every column positive: otherwise the order of rows decides on its sign.

    A random ``M`` is another start in every choice of signs.
    """
    largest = U.abs().argmax(dim=0, keepdim=True)
    return U * U.gather(0, largest).sign() if U.numel() else U


def _ratio(shared: Conceptor, past: Conceptor) -> float:
    """``Θ(C_and) / Θ(C)``; an empty past shares nothing."""
    return shared.capacity / past.capacity if past.capacity > 0 else 0.0
