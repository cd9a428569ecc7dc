"""Conceptors, subspaces and the moments they are fitted to. Values and functions; nothing here knows a network."""

from codecl.algebra.conceptor import Conceptor
from codecl.algebra.moments import Moments
from codecl.algebra.subspace import Subspace

__all__ = ["Conceptor", "Moments", "Subspace"]
