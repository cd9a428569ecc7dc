"""The formulas of ``codecl memory`` against what methods report, byte for byte."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from codecl import MultiHead
from codecl.experiments.registry import METHODS
from codecl.methods.footprint import FOOTPRINTS, Layer

N, M, T, B, K = 24, 10, 4, 5, 3
SETTINGS: dict[str, dict[str, Any]] = {
    "gpm": {"threshold": 1.0},
    "sgp": {"threshold": 1.0},
    "dfgp": {"threshold": 1.0},
    "trgp": {"threshold": 1.0, "trust": 0.0},
    "cuber": {"threshold": 1.0, "trust": 0.0, "agreement": 1.0},
    "code-cl": {"free_dims": K, "overlap": 0.0},
    "owm": {},
}


def inputs(task: int, shared: bool) -> Tensor:
    """Rows of rank B, the same directions for all tasks or other ones for each."""
    generator = torch.Generator().manual_seed(task)
    basis = torch.linalg.qr(torch.randn(N, N, dtype=torch.float64, generator=torch.Generator().manual_seed(9))).Q
    first = 0 if shared else task * B
    return torch.randn(40, B, dtype=torch.float64, generator=generator) @ basis[:, first : first + B].mT


def learn_all(name: str, shared: bool) -> int:
    model = MultiHead(nn.Linear(N, M, bias=False), M, 3).double()
    method = METHODS[name](model, **SETTINGS[name])
    for t in range(T):
        x = inputs(t, shared)
        batch = (x, torch.arange(40) % 3)
        model.select(t)
        model.double()
        method.begin_task(t, [batch])
        method.end_task([batch])
    return method.bytes()["memory"]


@pytest.mark.parametrize("name", FOOTPRINTS)
def test_a_formula_gives_the_bytes_that_a_method_reports(name: str) -> None:
    shared = name == "code-cl"  # nothing would be freed otherwise
    layer = Layer(N, M, T, B, K, rank=B if shared else None, narrow=8)
    assert learn_all(name, shared) == FOOTPRINTS[name].bytes(layer)


def test_trgp_shares_directions_instead_of_storing_them_again() -> None:
    layer = Layer(N, M, T, B, K, rank=B, narrow=8)
    assert learn_all("trgp", shared=True) == FOOTPRINTS["trgp"].bytes(layer)


def test_the_rank_never_exceeds_the_inputs() -> None:
    assert Layer(N, M, T=10, B=5, K=3).r == N
