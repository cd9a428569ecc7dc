"""How much each projection method stores, as a formula: the memory table of the CODE-CL paper, and what we keep.

For one fully connected layer of ``N`` inputs and ``M`` outputs after ``T`` tasks. The paper counts orders of growth.
Ours counts bytes, and agrees with ``method.bytes()`` to the last one: directions are kept in double precision, 8 bytes
a number, and what a task learns in the precision of the model. A basis that is made of columns of another is kept as
their numbers, which saves TRGP and CUBER the paper's ``T N B``; and a memory of rank ``r`` costs ``N r``, not ``N²``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

WIDE = 8
"""Bytes of a float64, and of an index."""


@dataclass(frozen=True)
class Layer:
    """``N`` inputs, ``M`` outputs, ``T`` tasks, ``B`` directions for each of them, ``K`` freed by CODE-CL.

    ``r`` are the directions of all tasks together, ``T B`` unless tasks share some; never more than ``N``. ``E`` are
    the inputs that API adds with every task after the first: under its own settings up to 5, of which it protects
    directions as of all others.
    """

    N: int
    M: int
    T: int
    B: int
    K: int
    rank: int | None = None
    narrow: int = 4
    """Bytes of a number in the model's dtype."""
    E: int = 5

    @property
    def r(self) -> int:
        return min(self.N, self.T * self.B) if self.rank is None else self.rank

    @property
    def s(self) -> int:
        """The directions that the last task shares with those before it, as SD counts them: all of an only task's."""
        return self.B if self.T == 1 else min(self.B, self.T * self.B - self.r)

    @property
    def scalings(self) -> int:
        """The matrices ``Q`` of TRGP: one for the second task, two for every later one."""
        return sum(min(2, t) for t in range(self.T))


@dataclass(frozen=True)
class Footprint:
    """``paper``: the order of growth printed there, if any. ``formula``: bytes; ``w`` are those of a model's number."""

    paper: str | None
    formula: str
    bytes: Callable[[Layer], int]


def _trgp(at: Layer) -> int:
    return WIDE * (at.N * at.r + at.T * at.B) + at.narrow * at.scalings * at.B**2


def _api(at: Layer) -> int:
    n = at.N + (at.T - 1) * at.E
    r = min(n, at.T * at.B) if at.rank is None else at.rank
    return WIDE * n * min(r, n - r) + at.narrow * (at.T - 1) * (at.N + at.M) * at.E


FOOTPRINTS: dict[str, Footprint] = {
    "gpm": Footprint("O(N²)", "8Nr", lambda at: WIDE * at.N * at.r),
    "sgp": Footprint("O(N²)", "8(Nr + r)", lambda at: WIDE * (at.N * at.r + at.r)),
    "dfgp": Footprint(None, "8Nr", lambda at: WIDE * at.N * at.r),
    "trgp": Footprint("O(N² + TNB + TB²)", "8(Nr + TB) + w(2T − 3)B²", _trgp),
    "cuber": Footprint(
        "O(N² + TN² + TNB + TB²)",
        "8(Nr + TB) + (2T − 3)(wB² + 1) + wTNM",
        lambda at: _trgp(at) + at.scalings + at.narrow * at.T * at.N * at.M,
    ),
    "trgp-sd": Footprint(None, "8(N(r + s) + TB) + w(2T − 3)B²", lambda at: _trgp(at) + WIDE * at.N * at.s),
    "api": Footprint(None, "8n min(r, n − r) + w(T − 1)(N + M)E, n = N + (T − 1)E", _api),
    "owm": Footprint(None, "8N²", lambda at: WIDE * at.N**2),
    "code-cl": Footprint(
        "O(N² + TNK + TK²)",
        "8Nr + w(T − 1)(NK + K²)",
        lambda at: WIDE * at.N * at.r + at.narrow * (at.T - 1) * (at.N * at.K + at.K**2),
    ),
    "code-cl (own)": Footprint(
        None,
        "8Nr + w(T − 1)(N + M)K",
        lambda at: WIDE * at.N * at.r + at.narrow * (at.T - 1) * (at.N + at.M) * at.K,
    ),
}
