"""The formulas of ``codecl memory`` against what methods report, byte for byte."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from codecl import CodeCL, Method, MultiHead
from codecl.methods import METHODS
from codecl.report.footprint import FOOTPRINTS, Layer

N, M, T, B, K = 24, 10, 4, 5, 3
SETTINGS: dict[str, dict[str, Any]] = {
    "gpm": {"threshold": 1.0},
    "sgp": {"threshold": 1.0},
    "dfgp": {"threshold": 1.0},
    "trgp": {"threshold": 1.0, "trust": 0.0},
    "cuber": {"threshold": 1.0, "trust": 0.0, "agreement": 1.0},
    "trgp-sd": {"threshold": 1.0, "trust": 0.0},
    "api": {"threshold": 1.0},
    "code-cl": {"free_dims": K, "overlap": 0.0},
    "code-cl (own)": {"own_share": 1.0},
    "owm": {},
}
MAKERS: dict[str, Callable[..., Method]] = {**METHODS, "code-cl (own)": CodeCL}


def inputs(task: int, shared: bool) -> Tensor:
    """Rows of rank B, the same directions for all tasks or other ones for each."""
    generator = torch.Generator().manual_seed(task)
    basis = torch.linalg.qr(torch.randn(N, N, dtype=torch.float64, generator=torch.Generator().manual_seed(9))).Q
    first = 0 if shared else task * B
    return torch.randn(40, B, dtype=torch.float64, generator=generator) @ basis[:, first : first + B].mT


def learn_all(name: str, shared: bool, **settings: Any) -> int:
    model = MultiHead(nn.Linear(N, M, bias=False), M, 3).double()
    method = MAKERS[name](model, **SETTINGS[name] | settings)
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
    shared = name.startswith("code-cl")  # nothing would be freed otherwise
    freed = B if name == "code-cl (own)" else K
    layer = Layer(
        N, M, T, B, freed, rank=B if shared else None, narrow=8, E=0
    )  # no gradient is lost, so API adds nothing
    assert learn_all(name, shared) == FOOTPRINTS[name].bytes(layer)


@pytest.mark.parametrize("name", ["trgp", "trgp-sd"])
def test_trgp_shares_directions_instead_of_storing_them_again(name: str) -> None:
    layer = Layer(N, M, T, B, K, rank=B, narrow=8)
    assert learn_all(name, shared=True) == FOOTPRINTS[name].bytes(layer)


@pytest.mark.parametrize("E", [2, 3])
def test_api_adds_inputs_and_keeps_the_smaller_basis(E: int) -> None:
    """All gradient is lost, so ρ K inputs are added; as mixtures of B they make E of the directions new again."""
    layer = Layer(N, M, T, B, K, rank=B + (T - 1) * E, narrow=8, E=E)
    assert learn_all("api", shared=True, rho=0.5, channels=2.0 * E) == FOOTPRINTS["api"].bytes(layer)


@pytest.mark.parametrize(("T", "B", "rank", "s"), [(1, 5, None, 5), (4, 5, None, 0), (4, 5, 5, 5), (4, 7, None, 4)])
def test_what_the_last_task_shares(T: int, B: int, rank: int | None, s: int) -> None:
    """The first shares all with itself; later ones what does not fit beside the others."""
    assert Layer(N, M, T, B, K, rank).s == s


def test_the_rank_never_exceeds_the_inputs() -> None:
    assert Layer(N, M, T=10, B=5, K=3).r == N
