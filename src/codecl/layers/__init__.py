"""Everything that knows a layer type: rows, capture, effective weights, projection."""

from codecl.layers.capture import Forward, UnseenUse, call_with_first, capture_moments, inputs_in, listen, take
from codecl.layers.convolution import ConvolutionKind
from codecl.layers.kinds import LayerKind, kind_of, refuse, register
from codecl.layers.mixing import Change, Mixing
from codecl.layers.norms import register_norm
from codecl.layers.projection import Projection
from codecl.layers.table import LayerRow, LayerTable, UncoveredWeights, survey
from codecl.layers.undisturbed import evaluating, in_mode, untouched_buffers, untouched_randomness
from codecl.layers.weight import ProtectedWeight, Use, attach

__all__ = [
    "Change",
    "ConvolutionKind",
    "Forward",
    "LayerKind",
    "LayerRow",
    "LayerTable",
    "Mixing",
    "Projection",
    "ProtectedWeight",
    "UncoveredWeights",
    "UnseenUse",
    "Use",
    "attach",
    "call_with_first",
    "capture_moments",
    "evaluating",
    "in_mode",
    "inputs_in",
    "kind_of",
    "listen",
    "refuse",
    "register",
    "register_norm",
    "survey",
    "take",
    "untouched_buffers",
    "untouched_randomness",
]
