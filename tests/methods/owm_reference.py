"""OWM in float64, one rank-1 update of P for every patch of the mean input: slow, and what OWM is compared with.

The network is a bare copy whose gradients autograd gives; everything after them is written out in loops.
"""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad


def mean_patches(module: nn.Module, x: Tensor, group: int, stride: int | None) -> Iterator[Tensor]:
    """The rows that matrix ``group`` of ``module`` meets, each averaged over the batch."""
    if isinstance(module, nn.Linear):
        yield x.mean(0)
        return
    (kh, kw), (dh, dw), (ph, pw) = module.kernel_size, module.dilation, module.padding
    sh, sw = module.stride if stride is None else (stride, stride)
    channels = module.in_channels // module.groups
    x = pad(x, (pw, pw, ph, ph))[:, group * channels : (group + 1) * channels]
    height, width = (kh - 1) * dh + 1, (kw - 1) * dw + 1
    for i in range(0, x.shape[2] - height + 1, sh):
        for j in range(0, x.shape[3] - width + 1, sw):
            yield torch.stack([image[:, i : i + height : dh, j : j + width : dw].flatten() for image in x]).mean(0)


class Reference:
    """The settings carry the names that OWM gives them; ``head`` is not projected, and biases learn freely."""

    def __init__(self, model, lr, alpha=1.0, alpha_end=None, patch_stride=None, clip=None):
        self.model = copy.deepcopy(model)
        self.lr, self.alpha, self.alpha_end = lr, alpha, alpha if alpha_end is None else alpha_end
        self.patch_stride, self.clip = patch_stride, clip
        kinds = (nn.Linear, nn.Conv2d)
        self.layers = {n: m for n, m in self.model.named_modules() if isinstance(m, kinds) and n != "head"}
        self.P = {}
        for name, module in self.layers.items():
            groups = getattr(module, "groups", 1)
            d = module.weight[0].numel()
            self.P[name] = [torch.eye(d, dtype=torch.float64) for _ in range(groups)]

    def step(self, x, y, progress):
        seen = {}
        hooks = [
            m.register_forward_pre_hook(lambda _, args, name=n: seen.update({name: args[0].detach()}))
            for n, m in self.layers.items()
        ]
        self.model.zero_grad()
        cross_entropy(self.model(x), y).backward()
        for hook in hooks:
            hook.remove()
        alpha = self.alpha ** (1 - progress) * self.alpha_end**progress
        for name, module in self.layers.items():
            G = module.weight.grad.reshape(len(self.P[name]), -1, len(self.P[name][0]))
            for group, P in enumerate(self.P[name]):
                for r in mean_patches(module, seen[name], group, self.patch_stride):
                    k = P @ r
                    P -= torch.outer(k, k) / (alpha + r @ k)
                G[group] = G[group] @ P.mT
            module.weight.grad = G.reshape(module.weight.shape)
        gradients = [p.grad for p in self.model.parameters()]
        norm = sum(float(g.square().sum()) for g in gradients) ** 0.5
        scale = 1.0 if self.clip is None else min(1.0, self.clip / (norm + 1e-6))
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter -= self.lr * scale * parameter.grad
        return scale
