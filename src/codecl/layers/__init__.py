"""What a layer type is: how its weights meet its inputs. Everything else knows only this form."""

import codecl.layers.huggingface  # noqa: F401  (registers what it knows)
from codecl.layers.attention import AttentionKind
from codecl.layers.base import LayerKind, kind_of, moments_of, refuse, register, register_added
from codecl.layers.convolution import ConvolutionKind
from codecl.layers.embedding import EmbeddingKind
from codecl.layers.norms import register_norm

__all__ = [
    "AttentionKind",
    "ConvolutionKind",
    "EmbeddingKind",
    "LayerKind",
    "kind_of",
    "moments_of",
    "refuse",
    "register",
    "register_added",
    "register_norm",
]
