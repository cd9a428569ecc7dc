"""States of another reading, with or without evidence, or with NaN are refused, and it is said what differs."""

import pytest
import torch
from torch import nn

from codecl import CodeCL
from tests.method.inference_cases import remember


def test_a_state_of_another_reading_is_told_apart():
    def learned(make, **more):
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        return remember(make(model, heads=["2"], overlap=0.0, **more), *torch.randn(2, 40, 4))

    torch.manual_seed(0)
    own, paper, telling = learned(CodeCL.own), learned(CodeCL.paper), learned(CodeCL.paper, evidence="auto")
    with pytest.raises(ValueError, match=r"has own weights B F in the state, and mixtures M here"):
        paper.load_state_dict(own.state_dict())
    with pytest.raises(ValueError, match=r"has mixtures M in the state, and own weights B F here"):
        own.load_state_dict(paper.state_dict())
    with pytest.raises(ValueError, match=r"holds the evidence .* made without evidence=: make it with\."):
        paper.load_state_dict(telling.state_dict())
    with pytest.raises(ValueError, match=r"holds no evidence .* made with evidence=: make it without\."):
        telling.load_state_dict(paper.state_dict())
    broken = own.state_dict()
    broken["per_task"][0] = {name: torch.full_like(v, torch.nan) for name, v in broken["per_task"][0].items()}
    with pytest.raises(ValueError, match=r"^the state holds NaN or infinite values"):
        own.load_state_dict(broken)
