"""Groups of units: layers whose outputs are added or multiplied write the same units."""

from __future__ import annotations

from dataclasses import dataclass, field

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


@dataclass
class Groups:
    """Sets of weights that write the same units, by union and find; the first weight names the set."""

    sizes: dict[str, int]
    """How many units each weight writes."""
    opened: set[str] = field(default_factory=set)
    """Weights whose units reach the output of the model, or mix with its inputs: they belong to no group."""

    def __post_init__(self) -> None:
        self.parents = {name: name for name in self.sizes}
        self.order = {name: i for i, name in enumerate(self.sizes)}

    def find(self, name: str) -> str:
        """The first weight of the set."""
        while self.parents[name] != name:
            name = self.parents[name]
        return name

    def tie(self, one: str, other: str) -> None:
        """The units of two weights are the same."""
        first, second = sorted((self.find(one), self.find(other)), key=self.order.__getitem__)
        self.parents[second] = first

    def named(self) -> dict[str, str]:
        """The group of each weight, without those that were opened."""
        opened = {self.find(name) for name in self.opened}
        return {name: root for name in self.sizes if (root := self.find(name)) not in opened}
