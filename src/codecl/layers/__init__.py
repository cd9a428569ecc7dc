"""Layer types: how their weights are multiplied with their inputs."""

import codecl.layers.huggingface
import codecl.layers.normalised  # noqa: F401  (both register their layers)
from codecl.layers.attention import AttentionKind
from codecl.layers.base import LayerKind, kind_of, moments_of, register, register_added
from codecl.layers.convolution import ConvolutionKind, TransposedConvolutionKind
from codecl.layers.embedding import EmbeddingBagKind, EmbeddingKind
from codecl.layers.linear import BilinearKind, LinearKind
from codecl.layers.norms import register_norm
from codecl.layers.recurrent import CellKind, RecurrentKind
from codecl.layers.traced import TracedKind, register_matrices

__all__ = [
    "AttentionKind",
    "BilinearKind",
    "CellKind",
    "ConvolutionKind",
    "EmbeddingBagKind",
    "EmbeddingKind",
    "LayerKind",
    "LinearKind",
    "RecurrentKind",
    "TracedKind",
    "TransposedConvolutionKind",
    "kind_of",
    "moments_of",
    "register",
    "register_added",
    "register_matrices",
    "register_norm",
]
