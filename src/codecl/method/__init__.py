"""The base class of all methods, and the parts it is made of."""

from codecl.method.guard import UnsafeOptimizer
from codecl.method.method import Method
from codecl.method.state import ForeignState
from codecl.method.watch import ProtectionWarning

__all__ = ["ForeignState", "Method", "ProtectionWarning", "UnsafeOptimizer"]
