"""Layer types: how their weights are multiplied with their inputs."""

import codecl.layers.huggingface  # noqa: F401  (registers its layers)
from codecl.layers.attention import AttentionKind
from codecl.layers.base import LayerKind, kind_of, moments_of, register, register_added
from codecl.layers.convolution import ConvolutionKind
from codecl.layers.embedding import EmbeddingKind
from codecl.layers.linear import LinearKind
from codecl.layers.norms import register_norm

__all__ = [
    "AttentionKind",
    "ConvolutionKind",
    "EmbeddingKind",
    "LayerKind",
    "LinearKind",
    "kind_of",
    "moments_of",
    "register",
    "register_added",
    "register_norm",
]
