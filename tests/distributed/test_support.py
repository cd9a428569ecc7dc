"""What the page on several processes says of every method is what the methods say, and its lines run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from codecl.methods import METHODS

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "several-processes.md").read_text()
YES = {"yes": True, "refused": False}


def test_the_table_says_which_methods_learn_on_several_processes() -> None:
    section = PAGE.split("## Which methods")[1]
    rows = {name: (YES[ddp], YES[fsdp]) for name, ddp, fsdp in re.findall(r"\| ([\w-]+) \| (\w+) \| (\w+) \|", section)}
    assert rows == {name: (method.distributed, method.sharded) for name, method in METHODS.items()}


@pytest.mark.parametrize("program", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_the_lines_to_copy_run(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    exec(program, namespace)
    draw = torch.Generator().manual_seed(0)
    loaders = [[(torch.randn(8, 6, generator=draw), torch.randint(0, 3, (8,), generator=draw))] * 2 for _ in range(2)]

    def make_model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))

    shards = "fully_shard" in program
    namespace["main"](loaders, make_model if shards else make_model())
    if shards:
        saved, plain = torch.load("learned.pt"), torch.load("task-0.pt")
        assert saved["method"]["tasks"] == [0, 1]
        assert torch.equal(saved["model"]["0.bias"], plain["0.bias"])  # frozen after the first task
        assert not torch.equal(saved["model"]["2.weight"], plain["2.weight"])  # the head of each task
