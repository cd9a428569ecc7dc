"""What a user saves over the published implementation's way of computing CODE-CL, written here by us.

It keeps conceptors as dense ``d × d`` matrices in float32. A step multiplies every gradient with one of them, and
recomposes effective weights. Between two tasks inverses, pseudo-inverses and bases come from dense SVDs.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codecl import CodeCL, MultiHead
from codecl.attach import Mixing, capture_moments
from codecl.networks import AlexNet
from perf.between_tasks import APERTURE, smooth_images
from perf.epoch import PlainAlexNet
from perf.timing import cpu_seconds, in_turn, one_thread, ratio
from perf.training_step import BATCH, K, alexnet, in_second_task, training_step
from tests.algebra import dense

RANK = 500
"""Of the Linear layers, as after four tasks of 125 inputs."""
SMALLEST, LARGEST, ZERO = 1e-8, 0.9999999, 1e-6
"""Between which singular values are clamped, and below which they count as 0."""


def measure(repeat: int) -> list[dict[str, object]]:
    """A step in a second task, and the work between the second and the third; CPU seconds on one thread."""
    method = in_second_task(CodeCL(MultiHead(PlainAlexNet(), AlexNet.features, 10), free_dims=K), RANK)
    cases = {"published": published_step(method), "ours": training_step(alexnet(), RANK)}
    with one_thread():
        seconds = in_turn(cases, repeat, clock=time.process_time)
    step = {name: statistics.median(of) for name, of in seconds.items()}
    between = between_tasks(MultiHead(AlexNet(), AlexNet.features, 10), smooth_images)
    return [
        {"what": "a step from task 2 on", **step, "times faster": ratio(seconds, "published", "ours")},
        {"what": "between two tasks", **between, "times faster": between["published"] / between["ours"]},
    ]


def published_step(method: CodeCL) -> Callable[[], object]:
    """A step of SGD in the task that ``method`` is in, after which it is detached from its model."""
    model, weights = method.model, {name: weight.parameter for name, weight in method.weights.items()}
    C = {name: of[0].dense().to(weights[name].dtype) for name, of in method.memory.items()}
    mixing = {name: change for name, change in method.effective.items() if isinstance(change, Mixing)}
    method.detach()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.requires_grad_(False)
    learned = [*model.parameters(), *(change.M for change in mixing.values())]
    optimizer = torch.optim.SGD(learned, lr=0.01)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, 3, 32, 32, generator=generator)
    y = torch.randint(0, 10, (BATCH,), generator=generator)

    def step() -> None:
        optimizer.zero_grad()
        seen = {name: effective(weights[name], change) for name, change in mixing.items()}
        F.cross_entropy(torch.func.functional_call(model, seen, (x,)), y).backward()
        for name, W in weights.items():
            assert W.grad is not None
            W.grad -= (W.grad.flatten(1) @ C[name]).view_as(W)
        optimizer.step()

    return step


def effective(W: Tensor, change: Mixing) -> Tensor:
    """``W + W U M Uᵀ`` in the shape of ``W``."""
    flat, U, M = W.flatten(1), change.U[0], change.M[0]
    return (flat + flat @ U @ M @ U.mT).view_as(W)


def between_tasks(model: nn.Module, images: Callable[[int], Tensor]) -> dict[str, float]:
    """From the end of the second task to the beginning of the third, both ways."""
    method = CodeCL(model, aperture=APERTURE)
    method.begin_task(0, [images(0)])
    method.end_task([images(0)])
    method.begin_task(1, [images(1)])
    first, second, third = (_correlations(method, images(t)) for t in range(3))
    C = {name: conceptor(R) for name, R in first.items()}

    def published() -> None:
        _correlations(method, images(1)), _correlations(method, images(2))
        for name, old in C.items():
            past = join(old, conceptor(second[name]))
            overlap = meet(conceptor(third[name]), past)
            torch.linalg.svdvals(overlap).mean() / torch.linalg.svdvals(past).mean()

    theirs = cpu_seconds(published)
    ours = cpu_seconds(partial(method.end_task, [images(1)])) + cpu_seconds(partial(method.begin_task, 2, [images(2)]))
    return {"published": theirs, "ours": ours}


def _correlations(method: CodeCL, x: Tensor) -> dict[str, Tensor]:
    seen = capture_moments(method.model, method.weights, [x])
    return {name: (of[0]._as_gram() / of[0].count).float() for name, of in seen.items()}


def conceptor(R: Tensor) -> Tensor:
    """Equation 2."""
    return clamped(R @ torch.linalg.inv(R + APERTURE**-2 * torch.eye(len(R))))


def join(A: Tensor, B: Tensor) -> Tensor:
    """``A ∨ B = ¬(¬A ∧ ¬B)``."""
    eye = torch.eye(len(A))
    return eye - meet(eye - A, eye - B)


def meet(A: Tensor, B: Tensor) -> Tensor:
    """``A ∧ B = G (Gᵀ (A⁺ + B⁺ − I) G)⁻¹ Gᵀ``, where ``G`` spans what both ranges share."""
    outside = torch.zeros_like(A)
    for C in (A, B):
        U, s = svd(C)
        empty = U[:, s <= ZERO]
        outside += empty @ empty.mT
    U, s = svd(outside)
    G = U[:, s <= ZERO]
    pseudo = torch.linalg.pinv(A, atol=ZERO) + torch.linalg.pinv(B, atol=ZERO)
    return clamped(G @ torch.linalg.inv(G.mT @ (pseudo - torch.eye(len(A))) @ G) @ G.mT)


def clamped(C: Tensor) -> Tensor:
    U, s = svd(C)
    return (U * s.clamp(SMALLEST, LARGEST)) @ U.mT


def svd(C: Tensor) -> tuple[Tensor, Tensor]:
    """Left vectors and values of the symmetric part: rounding must not pile up."""
    return dense.decompose((C + C.mT) / 2)
