"""``python -m tests.zoo.table`` writes the table of docs/networks.md: what becomes of all that is in the zoo."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

from tests.zoo.architectures import ADAPTERS, ARCHITECTURES
from tests.zoo.torch_layers import LAYERS, layer
from tests.zoo.trial import Specimen, trial

PAGE = Path(__file__).parents[2] / "docs" / "networks.md"
START, END = "<!-- table: start -->", "<!-- table: end -->"
ZOO: dict[str, dict[str, Callable[[str], Specimen]]] = {
    "torch.nn": dict.fromkeys(LAYERS, layer),
    "transformers": ARCHITECTURES,
    "peft": ADAPTERS,
}


def line(name: str, outcome: object) -> str:
    return f"| `{name}` | {outcome} |" if " " not in name else f"| {name} | {outcome} |"


def table() -> str:
    sections = []
    for package, specimens in ZOO.items():
        lines = [line(name, trial(make(name))) for name, make in specimens.items()]
        sections.append("\n".join([f"## {package}", "", f"| {len(lines)} of {package} | |", "|---|---|", *lines]))
    return "\n\n".join(sections)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(f"{before}{START}\n\n{table()}\n\n{END}{rest.partition(END)[2]}")
