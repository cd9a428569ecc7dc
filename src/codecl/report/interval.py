"""Whether a difference is more than noise: the 95 % interval of a mean over a few paired differences.

The interval is Student's: mean ± t s/√n, with s over n − 1, as for any small sample of roughly normal differences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from codecl.training import metrics

LEVEL = 0.95


def mean_interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """The interval in which the mean of such differences lies with 95 %; None for fewer than two.

    >>> low, high = mean_interval([1.0, 2.0, 3.0])
    >>> f"{low:.2f}, {high:.2f}"
    '-0.48, 4.48'
    """
    if len(differences) < 2:
        return None
    over = metrics.mean_std(differences)
    half = t_quantile(len(differences) - 1) * (over.std or 0.0) / math.sqrt(over.n)
    return over.mean - half, over.mean + half


@cache
def t_quantile(freedom: int) -> float:
    """The t within ± of which a variable of Student's distribution lies with 95 %, by bisection.

    >>> round(t_quantile(4), 3)
    2.776
    """
    low, high = 0.0, 64.0  # of one degree of freedom it is 12.7, of more it is less
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < LEVEL else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """The probability of a value within ± t, by the finite sums for whole degrees of freedom.

    With θ = atan(t/√ν): sin θ (1 + ½ cos²θ + (1·3)/(2·4) cos⁴θ + …) for even ν, and
    (θ + sin θ (cos θ + ⅔ cos³θ + (2·4)/(3·5) cos⁵θ + …)) 2/π for odd ν, up to cos^(ν−2) θ.
    """
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for power in range(1 if odd else 0, freedom - 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (power + 1) / (power + 2)
    return (angle + math.sin(angle) * total) * 2 / math.pi if odd else math.sin(angle) * total
