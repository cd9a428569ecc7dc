"""A training step under CODE-CL over the same step under plain SGD."""

from collections.abc import Callable

import torch
from torch import nn

from codecl import CodeCL, Conceptor, MultiHead
from codecl.layers.norms import is_norm
from codecl.method.watch import FIRST_STEPS
from codecl.networks import AlexNet, ReducedResNet18, VisionTransformer
from perf.timing import in_turn, one_thread, ratio

K, BATCH = 80, 64
WARM_UP = FIRST_STEPS + 2
"""The first steps of a task are followed by a copy of every weight; a task has hundreds."""


def measure(repeat: int) -> list[dict[str, object]]:
    """On one thread, as ``codecl run`` trains, and on all: what does not run in parallel weighs more there."""
    with one_thread():
        rows = _measure(repeat)
    return rows + (_measure(repeat) if torch.get_num_threads() > 1 else [])


def _measure(repeat: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    of_alexnet, in_bf16 = (
        {"plain SGD": training_step(alexnet(), None, bf16=bf16)}
        | {
            f"CODE-CL, rank {rank} in the Linear layers": training_step(alexnet(), rank, bf16=bf16)
            for rank in (125, 500, 1000)
        }
        for bf16 in (False, True)
    )
    of_resnet = {
        "plain SGD": training_step(resnet(), None),
        "CODE-CL, full rank": training_step(resnet(), None, full=True),
    }
    of_vit = {
        "plain SGD": training_step(vit(), None),
        "CODE-CL, rank 125 in the Linear layers": training_step(vit(), 125),
        "CODE-CL, full rank": training_step(vit(), None, full=True),
    }
    networks = {"AlexNet": of_alexnet, "AlexNet in bf16": in_bf16}
    networks |= {"reduced ResNet18": of_resnet, "ViT, depth 6, width 192": of_vit}
    for network, cases in networks.items():
        seconds = in_turn(cases, repeat, WARM_UP)
        for name in list(cases)[1:]:
            milliseconds = 1e3 * sorted(seconds[name])[len(seconds[name]) // 2]
            rows.append(
                {
                    "network": network,
                    "step": name,
                    "threads": torch.get_num_threads(),
                    "ms": round(milliseconds, 1),
                    "ratio": ratio(seconds, name, "plain SGD"),
                }
            )
    return rows


def alexnet() -> nn.Module:
    return MultiHead(AlexNet(), AlexNet.features, 10)


def resnet() -> nn.Module:
    backbone = ReducedResNet18()
    return MultiHead(backbone, backbone.features, 10)


def vit() -> nn.Module:
    """32×32 images in 64 patches of 4×4, six blocks of width 192."""
    backbone = VisionTransformer(image_size=32, patch=4, width=192, depth=6)
    return MultiHead(backbone, backbone.features, 10)


def training_step(model: nn.Module, rank: int | None, full: bool = False, bf16: bool = False) -> Callable[[], object]:
    """One step of SGD on a batch of random images, as in a second task with conceptors of the given rank.

    With ``bf16`` the forward pass runs under autocast.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if rank is not None or full:
        method = in_second_task(CodeCL(model, free_dims=K), rank)
        method.guard(optimizer)
    else:
        hold_norms(model)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, 3, 32, 32, generator=generator)
    y = torch.randint(0, 10, (BATCH,), generator=generator)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            outputs = model(x)
        nn.functional.cross_entropy(outputs.float(), y).backward()
        optimizer.step()

    return step


def hold_norms(model: nn.Module) -> None:
    """The papers train norms in the first task only; plain SGD is not charged for them either."""
    for module in model.modules():
        if is_norm(module):
            module.requires_grad_(False)


def in_second_task(method: CodeCL, rank: int | None) -> CodeCL:
    """A state as a real first task would leave it: ``rank`` directions in Linear layers, all of them in convolutions.

    Convolutions with more than K inputs have K directions freed, as happens on the real data, and so have Linear
    layers where ``rank`` is not given.
    """
    generator = torch.Generator().manual_seed(0)
    state = method.state_dict()
    freed: dict[str, dict[str, object]] = {}
    for name, weight in method.weights.items():
        g, _, d = weight.shape
        convolution = weight.parameter.ndim > 2
        k = d if convolution or rank is None else min(rank, d)
        stack = [_random_conceptor(d, k, generator) for _ in range(g)]
        state["memory"]["factors"][name] = [C.factor for C in stack]
        if (convolution or rank is None) and d > K:
            U = torch.stack([C.top(K) for C in stack]).to(weight.parameter.dtype)
            freed[name] = {"U": U, "M": torch.zeros(g, K, K), "replace": False, "hold": False}
    own = {name: value.clone() for name, value in method.per_task.values().items()}
    state |= {"tasks": [0, 1], "learning": True, "per_task": [own], "effective": [{}, freed]}
    method.load_state_dict(state)
    return method


def _random_conceptor(d: int, k: int, generator: torch.Generator) -> Conceptor:
    basis = torch.linalg.qr(torch.randn(d, k, dtype=torch.float64, generator=generator)).Q
    return Conceptor.from_spectrum(basis, 10 ** (2 * torch.rand(k, dtype=torch.float64, generator=generator)))
