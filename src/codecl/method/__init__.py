"""The base class of all methods, and the parts it is made of."""

from codecl.method.guard import UnsafeOptimizer
from codecl.method.method import Method
from codecl.method.state import ForeignState

__all__ = ["ForeignState", "Method", "UnsafeOptimizer"]
