"""What a model feeds its weights, as ``XᵀX``."""

from torch import Tensor, nn

from codecl.attach import capture_moments
from tests.layers.cases import attached, normal


def gram(moments) -> Tensor:
    """``ΣXᵀX``."""
    U, sigma = moments.spectrum()
    return (U * sigma.square()) @ U.mT


def captured(model: nn.Module, batches: list, **settings) -> dict[str, list[Tensor]]:
    """``ΣXᵀX`` of each matrix of each weight."""
    with attached(model) as weights:
        seen = capture_moments(model, weights, batches, **settings)
    return {name: [gram(m) for m in several] for name, several in seen.items()}


def square(X: Tensor) -> Tensor:
    return X.mT @ X


X = normal(5, 6, 4)
