"""Methods, one paper per file. The base class, ``Method``, is plain fine-tuning."""

from codecl.methods.code_cl import CodeCL
from codecl.methods.guard import UnsafeOptimizer
from codecl.methods.method import Method

__all__ = ["CodeCL", "Method", "UnsafeOptimizer"]
