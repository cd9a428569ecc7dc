"""What is planted on a model and taken off again: forwards, projections, effective weights, capture."""

from codecl.attach.batches import Forward, call_with_first, inputs_in, take, taking
from codecl.attach.capture import UnseenUse, capture_moments, check_uses, listen
from codecl.attach.effective import EffectiveWeight, Expansion, Masked, Mixing, Own, Scaling
from codecl.attach.extended import ExtendedWeight
from codecl.attach.forward import attach
from codecl.attach.patching import evaluating, in_mode, untouched_buffers
from codecl.attach.projection import Projection, project_away, project_conceptors
from codecl.attach.survey import LayerRow, LayerTable, UncoveredWeights, refuse_wrappers, survey
from codecl.attach.weight import ProtectedWeight
from codecl.randomness import untouched_randomness

__all__ = [
    "EffectiveWeight",
    "Expansion",
    "ExtendedWeight",
    "Forward",
    "LayerRow",
    "LayerTable",
    "Masked",
    "Mixing",
    "Own",
    "Projection",
    "ProtectedWeight",
    "Scaling",
    "UncoveredWeights",
    "UnseenUse",
    "attach",
    "call_with_first",
    "capture_moments",
    "check_uses",
    "evaluating",
    "in_mode",
    "inputs_in",
    "listen",
    "project_away",
    "project_conceptors",
    "refuse_wrappers",
    "survey",
    "take",
    "taking",
    "untouched_buffers",
    "untouched_randomness",
]
