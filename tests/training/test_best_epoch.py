"""The best epoch of a task is restored: weights, mixing and head."""

from dataclasses import replace

import torch

from codecl import CodeCL
from codecl.training.engine import Trainer
from tests.training.small import PLAN, assert_same_bits, network, small_stream


def learned(method):
    return [parameter.detach().clone() for parameter in method.parameters()]


class Watched(CodeCL):
    """Notes what it is asked to remember."""

    def remember(self, loader):
        self.ended = getattr(self, "ended", [])
        self.ended.append(({n: v.clone() for n, v in self.model.state_dict().items()}, learned(self)))
        super().remember(loader)


def test_the_best_epoch_is_restored_with_its_mixing_and_head():
    method, epochs = Watched(network(), aperture=8.0, free_dims=3, overlap=0.0, samples=20), []

    def observe(event):
        if event["event"] == "epoch":
            weights = {name: value.clone() for name, value in method.model.state_dict().items()}
            epochs.append((event["task"], event["validation_loss"], weights, learned(method)))

    Trainer(method, small_stream(), replace(PLAN, patience=3), None, (observe,)).run()
    earlier = 0
    for t in range(3):
        of = [(loss, weights, mixing) for task, loss, weights, mixing in epochs if task == t]
        best = min(range(len(of)), key=lambda i: of[i][0])
        earlier += best < len(of) - 1
        assert_same_bits(method.ended[t][0], of[best][1])
        assert len(method.ended[t][1]) == (0 if t == 0 else 2)
        for ours, theirs in zip(method.ended[t][1], of[best][2], strict=True):
            assert torch.equal(ours, theirs)
            assert bool((ours != 0).any())
        assert torch.equal(method.model.state_dict()[f"heads.{t}.weight"], of[best][1][f"heads.{t}.weight"])
    assert earlier > 0  # else nothing had to be restored
