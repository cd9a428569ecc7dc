"""Groups of units: layers whose outputs are added or multiplied write the same units."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from codecl.attach.units.units import Units


@dataclass(frozen=True)
class Channels:
    """The groups of units of a network, named after the first weight that writes them, and all that touches them."""

    units: dict[str, int]
    """How many units each group has."""
    reads: dict[str, Units | None]
    """By weight: how its inputs carry units; None for inputs of the network and units outside all groups."""
    writes: dict[str, Units | None]
    """By weight: how its outputs carry units; None where they belong to no group."""
    readers: dict[str, Units]
    """Layers that are not protected, heads above all, by name: how their inputs carry units."""
    mixed: set[str]
    """Groups that a norm mixes (LayerNorm, LocalResponseNorm): to be masked before it too, where they arise."""
    vectors: dict[nn.Parameter, Units]
    """Biases, and the parameters of norms: their units."""


class Groups:
    """Sets of weights that write the same units; ``sizes`` says how many each weight writes."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.sizes = sizes
        self.opened: set[str] = set()
        """Weights whose units reach the output of the model, or mix with its inputs: they belong to no group."""
        self._first = {name: name for name in sizes}
        """The first weight of the set of each, which names it."""

    def tie(self, one: str, other: str) -> None:
        """The units of two weights are the same."""
        first, second = sorted((self._first[one], self._first[other]), key=list(self.sizes).index)
        self._first = {name: first if root == second else root for name, root in self._first.items()}

    def named(self) -> dict[str, str]:
        """The group of each weight, without those that were opened."""
        opened = {self._first[name] for name in self.opened}
        return {name: root for name, root in self._first.items() if root not in opened}
