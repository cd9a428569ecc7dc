"""TRGP, CUBER and TRGP-SD on a bare network and dense float64 matrices, as loops: what ours are compared with.

As in ``gpm_reference``, the network is trained without a line of codecl: ``model`` holds the shared weights, and a
task sees it through ``functional_call`` with its effective ones. A grouped convolution is a list of matrices.
"""

import io
from dataclasses import dataclass, field

import torch
from torch import Tensor, optim
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from tests.algebra import dense
from tests.methods.cases import Batches, outputs_of, train
from tests.methods.gpm_reference import LAYERS, SlowGPM, images, projector

Matrices = list[Tensor]


def norm_of(matrices: Matrices) -> float:
    return sum(float(matrix.square().sum()) for matrix in matrices) ** 0.5


def inner(a: Matrices, b: Matrices) -> float:
    return sum(float((x * y).sum()) for x, y in zip(a, b, strict=True))


def pooled(B: Tensor, X: Tensor, threshold: float, off_by_one: bool) -> tuple[Tensor, Tensor]:
    """The basis of all tasks with the new directions in it, and ``S_t``."""
    U, sigma, _ = torch.linalg.svd((X - X @ projector(B)).mT, full_matrices=False)
    pool = [(float(b @ X.mT @ X @ b), i, b) for i, b in enumerate(B.mT)]
    pool += [(float(s) ** 2, B.shape[1] + i, u) for i, (s, u) in enumerate(zip(sigma, U.mT, strict=True))]
    held, own, joining = 0.0, [], []
    for energy, i, direction in sorted(pool, key=lambda entry: -entry[0]):
        if held >= threshold * float(X.square().sum()):
            break
        held += energy
        own.append(direction)
        if i > B.shape[1] or (i == B.shape[1] and not off_by_one):
            joining.append(direction)
    stack = lambda columns: torch.stack(columns, 1) if columns else B[:, :0]  # noqa: E731
    return torch.cat([B, stack(joining)], 1), stack(own)


@dataclass
class SlowTRGP(SlowGPM):
    """Section by section as in the docstring of ``trgp``. ``trusted`` and ``Q`` are those of the task being learned."""

    trust: float = 0.5
    most_trusted: int = 2
    off_by_one: bool = False
    spaces: list[dict[str, Matrices]] = field(default_factory=list)
    trusted: dict[str, list[int]] = field(default_factory=dict)
    Q: dict[str, list[Matrices]] = field(default_factory=dict)
    views: list[tuple] = field(default_factory=list)
    """What each learned task needs at test time: whom it trusted, Q, and its head."""

    def matrices(self, name: str) -> tuple[Tensor, ...]:
        module = self.model.get_submodule(name)
        return tuple(part.flatten(1) for part in module.weight.chunk(getattr(module, "groups", 1)))

    def split(self, name: str, value: Tensor) -> Matrices:
        return [part.flatten(1) for part in value.chunk(len(self.matrices(name)))]

    def effective(self, name: str, trusted: list[int], Q: list[Matrices]) -> Tensor:
        parts = []
        for g, W in enumerate(self.matrices(name)):
            W_eff = W
            for j, of_task in zip(trusted, Q, strict=True):
                S = self.spaces[j][name][g]
                W_eff = W_eff + (W @ S @ of_task[g] @ S.mT - W @ S @ S.mT)
            parts.append(W_eff)
        return torch.cat(parts).reshape(self.model.get_submodule(name).weight.shape)

    def output(self, x: Tensor, trusted: dict, Q: dict, own: dict[str, Tensor] | None = None) -> Tensor:
        weights = {f"{name}.weight": self.effective(name, trusted[name], Q[name]) for name in trusted}
        return functional_call(self.model, weights | (own or {}), (x,))

    def output_of(self, task: int, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.output(x, *self.views[task])

    def mean_gradients(self, batches: Batches, trusted: dict, Q: dict) -> dict[str, Matrices]:
        """``∂L/∂W`` over all inputs, not projected."""
        parameters = [self.model.get_submodule(name).weight for name in LAYERS]
        losses = [cross_entropy(self.output(x, trusted, Q), y, reduction="sum") for x, y in batches]
        loss = sum(losses) / sum(len(y) for _, y in batches)
        found = torch.autograd.grad(loss, parameters)
        return {name: self.split(name, G) for name, G in zip(LAYERS, found, strict=True)}

    def begin(self, batches: Batches) -> None:
        self.trusted, self.Q = {}, {}
        G = self.mean_gradients(batches, {}, {}) if self.learned else {}
        for name in G:
            shares = {}
            for j, spaces in enumerate(self.spaces):
                inside = [matrix @ projector(S) for matrix, S in zip(G[name], spaces[name], strict=True)]
                shares[j] = norm_of(inside) / norm_of(G[name])
            candidates = sorted(shares, key=shares.get, reverse=True)[: self.most_trusted]
            self.trusted[name] = [j for j in candidates if shares[j] > self.trust]
            self.Q[name] = [[dense.identity(S.shape[1]) for S in self.spaces[j][name]] for j in self.trusted[name]]
        self.sort(G)

    def sort(self, G: dict[str, Matrices]) -> None:
        """What CUBER does with the gradients before a task."""

    def step(self, x: Tensor, y: Tensor) -> None:
        of = self.learning()
        Q = [q.requires_grad_() for several in self.Q.values() for of_task in several for q in of_task]
        loss = cross_entropy(self.output(x, self.trusted, self.Q), y)
        found = torch.autograd.grad(loss, [*of.values(), *Q])
        with torch.no_grad():
            moved = {name: self.projected(name, G) for name, G in self.regularised(dict(zip(of, found, strict=False)))}
            for name, parameter in of.items():
                parameter -= self.lr * moved[name]
            for q, G in zip(Q, found[len(of) :], strict=True):
                q -= self.lr * G

    def regularised(self, gradients: dict[str, Tensor]):
        return gradients.items()

    def end(self, batches: Batches) -> None:
        rows = self.rows(batches)
        head = {f"head.{kind}": value.detach().clone() for kind, value in self.model.head.named_parameters()}
        self.views.append((self.trusted, self.Q, head))
        if self.learned == 0:
            super().end(batches)
            self.spaces.append(dict(self.bases))
            return
        threshold = min(1.0, self.threshold + self.increment * self.learned)
        self.spaces.append({})
        for name, several in rows.items():
            found = [pooled(B, X, threshold, self.off_by_one) for B, X in zip(self.bases[name], several, strict=True)]
            self.bases[name], self.spaces[-1][name] = [B for B, _ in found], [S for _, S in found]
        self.learned += 1


@dataclass
class SlowCUBER(SlowTRGP):
    agreement: float = 0.0
    strength: float = 2.0
    past: list[dict[str, Matrices]] = field(default_factory=list)
    R3: dict[str, list[int]] = field(default_factory=dict)
    W_before: dict[str, Matrices] = field(default_factory=dict)

    def cosine(self, name: str, j: int, G: dict[str, Matrices]) -> float:
        g_j = self.past[j][name]
        return inner(g_j, G[name]) / (norm_of(g_j) * norm_of(G[name]))

    def sort(self, G: dict[str, Matrices]) -> None:
        self.R3 = {name: [j for j in self.trusted[name] if self.cosine(name, j, G) > self.agreement] for name in G}
        self.W_before = {name: [W.detach().clone() for W in self.matrices(name)] for name in LAYERS}

    def penalty(self) -> float:
        return self.strength * sum(norm_of(self.moved(name, j)) for name in self.R3 for j in self.R3[name])

    def moved(self, name: str, j: int) -> Matrices:
        triples = zip(self.matrices(name), self.W_before[name], self.spaces[j][name], strict=True)
        return [((W - before) @ projector(S)).detach() for W, before, S in triples]

    def regularised(self, gradients: dict[str, Tensor]):
        for name in self.R3:
            for j in self.R3[name]:
                D = self.moved(name, j)
                if norm_of(D) > 0:  # the gradient of a norm at 0 is 0
                    G = gradients[f"{name}.weight"]
                    gradients[f"{name}.weight"] = G + self.strength * torch.cat(D).reshape(G.shape) / norm_of(D)
        return gradients.items()

    def projected(self, name: str, G: Tensor) -> Tensor:
        layer = name.removesuffix(".weight")
        if layer not in self.R3:
            return super().projected(name, G)
        held = [self.spaces[j][layer] for j in range(len(self.spaces)) if j not in self.R3[layer]]
        parts = []
        for g, matrix in enumerate(self.split(layer, G)):
            union = torch.cat([matrix[:0].mT, *(spaces[g] for spaces in held)], 1)
            U, sigma, _ = torch.linalg.svd(union, full_matrices=False)
            parts.append(matrix - matrix @ projector(U[:, sigma > 1e-6]))
        return torch.cat(parts).reshape(G.shape)

    def end_epoch(self, batch: tuple[Tensor, Tensor]) -> None:
        G = self.mean_gradients([batch], self.trusted, self.Q)
        for name in self.R3:
            self.R3[name] = [j for j in self.R3[name] if self.cosine(name, j, G) >= self.agreement]

    def end(self, batches: Batches) -> None:
        self.past.append(self.mean_gradients(batches, self.trusted, self.Q))
        super().end(batches)
        self.R3 = {}


def intersection(A: Tensor, V: Tensor, tolerance: float) -> Tensor:
    """The projector on the directions of ``A`` at ``cos θ ≥ 1 − τ`` from the span of ``V``.

    These are eigenvectors of ``A Aᵀ V Vᵀ A Aᵀ`` with the eigenvalue ``cos² θ``.
    """
    cosines, vectors = torch.linalg.eigh(projector(A) @ projector(V) @ projector(A))
    return projector(vectors[:, cosines >= (1 - tolerance) ** 2])


@dataclass
class SlowSD(SlowTRGP):
    tolerance: float = 0.1
    plasticity: float = 0.9
    shared: dict[str, Matrices] = field(default_factory=dict)
    """Projectors on the stability space."""

    def projected(self, name: str, G: Tensor) -> Tensor:
        layer = name.removesuffix(".weight")
        if layer not in self.shared:
            return super().projected(name, G)
        parts = []
        for matrix, B, stable in zip(self.split(layer, G), self.bases[layer], self.shared[layer], strict=True):
            plastic = projector(B) - stable
            parts.append(matrix - matrix @ stable - self.plasticity * matrix @ plastic)
        return torch.cat(parts).reshape(G.shape)

    def end(self, batches: Batches) -> None:
        threshold = min(1.0, self.threshold + self.increment * self.learned)
        old = {name: list(bases) for name, bases in self.bases.items()}
        rows = self.rows(batches)
        super().end(batches)
        for name, several in rows.items():
            self.shared[name] = []
            for g, X in enumerate(several):
                A = old[name][g] if name in old else X[:0].mT
                V = dense.gpm_later_task(X[:0].mT, X, threshold)
                everything = projector(self.bases[name][g])
                self.shared[name].append(intersection(A, V, self.tolerance) if A.shape[1] else everything)


# What the tests of the three share.


def own_bases(method, task, name):
    """``S_j`` of each matrix, put together by hand."""
    bases = [B.basis for B in method.memory[name]]
    chosen = method.chosen[task][name]
    return [torch.cat([B[:, of["columns"]], of["beside"]], 1) for B, of in zip(bases, chosen, strict=True)]


def assert_same(slow, method):
    """Weights, bases, the directions of every task, and what every task has learned."""
    for (name, ours), theirs in zip(method.model.named_parameters(), slow.model.parameters(), strict=True):
        assert_close(ours, theirs, atol=1e-8, rtol=0, msg=lambda text, name=name: f"{name}: {text}")
    for layer in LAYERS:
        name = f"{layer}.weight"
        for ours, theirs in zip(method.memory[name], slow.bases[layer], strict=True):
            assert ours.rank == theirs.shape[1]
            assert_close(projector(ours.basis), projector(theirs), atol=1e-8, rtol=0)
        for task, spaces in enumerate(slow.spaces):
            for ours, theirs in zip(own_bases(method, task, name), spaces[layer], strict=True):
                assert ours.shape == theirs.shape
                assert_close(projector(ours), projector(theirs), atol=1e-8, rtol=0)
        for task, (trusted, Q, _) in enumerate(slow.views):
            change = method.per_task.effective[task].get(name)
            assert (change.tasks if change is not None else []) == trusted.get(layer, [])
            for k, j in enumerate(trusted.get(layer, [])):
                for g, S in enumerate(slow.spaces[j][layer]):
                    ours = change.bases[k][g] @ change.Q[k][g] @ change.bases[k][g].mT
                    assert_close(ours, S @ Q[layer][k][g] @ S.mT, atol=1e-8, rtol=0)


def run_beside(slow, method, tasks=3, epochs=2, lr=0.2):
    """Both learn the same tasks; what they know is compared after each."""
    optimizer = optim.SGD(method.model.parameters(), lr=lr)
    method.guard(optimizer)
    for task in range(tasks):
        batches = images(task)
        method.begin_task(task, batches)
        slow.begin(batches)
        for _ in range(epochs):
            for x, y in method.watch(batches):
                optimizer.zero_grad()
                cross_entropy(method.model(x), y).backward()
                optimizer.step()
                slow.step(x, y)
            if hasattr(slow, "end_epoch"):
                slow.end_epoch(batches[-1])
        method.end_task(batches)
        slow.end(batches)
        assert_same(slow, method)
        for known in range(task + 1):
            x = images(known)[0][0]
            assert_close(outputs_of(method, known, x), slow.output_of(known, x), atol=1e-8, rtol=0)


def learn_two_begin_third(method):
    """Q of the third task have moved."""
    optimizer = optim.SGD(method.model.parameters(), lr=0.2)
    method.guard(optimizer)
    for task in range(3):
        method.begin_task(task, images(task))
        train(method.model, method.watch(images(task)), optimizer, epochs=1)
        if task < 2:
            method.end_task(images(task))


def learn_watched(method, tasks, epochs=2, lr=0.1, momentum=0.0):
    optimizer = optim.SGD(method.model.parameters(), lr=lr, momentum=momentum)
    method.guard(optimizer)
    for batches in tasks:
        method.begin_task(len(method.tasks), batches)
        for _ in range(epochs):
            train(method.model, method.watch(batches), optimizer, epochs=1)
        method.end_task(batches)
    return optimizer


def reloaded(tree):
    buffer = io.BytesIO()
    torch.save(tree, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def tensors_in(tree):
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (dict, list)):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors_in(value)


def numbers_in_memory(method):
    """Of the bases, of the columns that are a task's, and of the directions it has beside them."""
    total = sum(B.basis.numel() for bases in method.memory.values() for B in bases)
    for of_weight in (several for of_task in method.chosen for several in of_task.values()):
        total += sum(len(of["columns"]) + of["beside"].numel() for of in of_weight)
    return total
