"""Everything that knows a layer type: rows, capture, effective weights, projection."""

import codecl.layers.huggingface  # noqa: F401  (registers what it knows)
from codecl.layers.attention import AttentionKind
from codecl.layers.capture import (
    Forward,
    UnseenUse,
    call_with_first,
    capture_moments,
    inputs_in,
    listen,
    take,
    taking,
)
from codecl.layers.convolution import ConvolutionKind
from codecl.layers.embedding import EmbeddingKind
from codecl.layers.kinds import LayerKind, kind_of, moments_of, refuse, register, register_added
from codecl.layers.mixing import Change, Mixing
from codecl.layers.norms import register_norm
from codecl.layers.projection import Projection
from codecl.layers.table import LayerRow, LayerTable, UncoveredWeights, survey
from codecl.layers.undisturbed import evaluating, in_mode, untouched_buffers, untouched_randomness
from codecl.layers.weight import ProtectedWeight, Use, attach
from codecl.layers.wrappers import refuse_wrappers

__all__ = [
    "AttentionKind",
    "Change",
    "ConvolutionKind",
    "EmbeddingKind",
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
    "moments_of",
    "refuse",
    "refuse_wrappers",
    "register",
    "register_added",
    "register_norm",
    "survey",
    "take",
    "taking",
    "untouched_buffers",
    "untouched_randomness",
]
