"""What is planted on a model and taken off again: forwards, projections, effective weights, capture."""

from codecl.attach.capture import Forward, UnseenUse, call_with_first, capture_moments, inputs_in, listen, take, taking
from codecl.attach.effective import Change, Mixing
from codecl.attach.preserve import evaluating, in_mode, untouched_buffers
from codecl.attach.projection import Projection
from codecl.attach.survey import LayerRow, LayerTable, UncoveredWeights, survey
from codecl.attach.weight import ProtectedWeight, Use, attach
from codecl.attach.wrappers import refuse_wrappers
from codecl.randomness import untouched_randomness

__all__ = [
    "Change",
    "Forward",
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
    "listen",
    "refuse_wrappers",
    "survey",
    "take",
    "taking",
    "untouched_buffers",
    "untouched_randomness",
]
