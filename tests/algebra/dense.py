"""The paper's formulas as printed, on dense float64 matrices: slow, and what the tests compare with.

They invert and take pseudo-inverses, so they are accurate only for mild odds; for wide ones there is ``exact.py``.
"""

import torch
from torch import Tensor

BETA = 1e-6


def identity(d: int) -> Tensor:
    return torch.eye(d, dtype=torch.float64)


def matrix(basis: Tensor, odds: Tensor, rest: int) -> Tensor:
    """``Σ s u uᵀ``, and ``rest`` on everything orthogonal to the ``u``."""
    d = len(basis)
    C = rest * identity(d)
    for u, q in zip(basis.mT, odds.tolist(), strict=True):
        C += (q / (1 + q) - rest) * torch.outer(u, u)
    return C


def objective(C: Tensor, X: Tensor, aperture: float) -> Tensor:
    """Equation 1."""
    return (X - X @ C).square().sum() / len(X) + aperture**-2 * C.square().sum()


def fit(X: Tensor, aperture: float) -> Tensor:
    """Equation 2."""
    X = X.to(torch.float64)
    R = X.mT @ X / len(X)
    return R @ torch.linalg.inv(R + aperture**-2 * identity(len(R)))


def fit_atol(X: Tensor, aperture: float) -> float:
    """What inverting ``I + a² R`` costs equation 2 itself: eps times its condition number."""
    return 16 * torch.finfo(torch.float64).eps * (1 + aperture**2 * float(X.double().square().sum()) / len(X))


def negate(C: Tensor) -> Tensor:
    """Equation 3."""
    return identity(len(C)) - C


def conjoin_invertible(C: Tensor, B: Tensor) -> Tensor:
    """Equation 4."""
    return torch.linalg.inv(torch.linalg.inv(C) + torch.linalg.inv(B) - identity(len(C)))


def decompose(C: Tensor) -> tuple[Tensor, Tensor]:
    """Singular vectors and values of a symmetric positive matrix."""
    try:
        U, s, _ = torch.linalg.svd(C)
    except torch.linalg.LinAlgError:  # large matrices with many equal singular values do not always converge
        s, U = torch.linalg.eigh(C)
        s, U = s.flip(0), U.flip(1)
    return U, s


def intersection(C: Tensor, B: Tensor, beta: float = BETA) -> Tensor:
    """Algorithm 2: ``D``, an orthonormal basis of what the column spaces of ``C`` and ``B`` share."""
    U_C, s_C = decompose(C)
    U_B, s_B = decompose(B)
    k_C = int((s_C > beta).sum())
    k_B = int((s_B > beta).sum())
    outside_C, outside_B = U_C[:, k_C:], U_B[:, k_B:]
    U, s = decompose(outside_C @ outside_C.mT + outside_B @ outside_B.mT)
    k = int((s > beta).sum())
    return U[:, k:]


def pseudo_inverse(C: Tensor) -> Tensor:
    """``C†`` of a symmetric positive matrix, singular values up to β counting as 0."""
    U, s = decompose(C)
    return (U[:, s > BETA] / s[s > BETA]) @ U[:, s > BETA].mT


def conjoin(C: Tensor, B: Tensor, beta: float = BETA) -> Tensor:
    """The general AND of the supplement."""
    D = intersection(C, B, beta)
    inner = pseudo_inverse(C) + pseudo_inverse(B) - identity(len(C))
    return D @ torch.linalg.inv(D.mT @ inner @ D) @ D.mT


def disjoin(C: Tensor, B: Tensor) -> Tensor:
    """Equation 5, its AND being the general one."""
    return negate(conjoin(negate(C), negate(B)))


def adapt(C: Tensor, gamma: float) -> Tensor:
    """The conceptor of the same rows at ``γ`` times the aperture."""
    return C @ torch.linalg.inv(C + gamma**-2 * (identity(len(C)) - C))


def capacity(C: Tensor) -> float:
    """Equation 6."""
    return float(torch.linalg.svdvals(C).sum()) / len(C)


def cut(C: Tensor, minimum: float) -> Tensor:
    """Singular values below ``minimum`` become 0."""
    U, s, Vt = torch.linalg.svd(C)
    return U @ torch.diag(torch.where(s < minimum, 0.0, s)) @ Vt


def similarity(C: Tensor, B: Tensor) -> float:
    return float(torch.trace(C @ B) / (torch.trace(C @ C) * torch.trace(B @ B)).sqrt())


def gpm_first_task(X: Tensor, threshold: float) -> Tensor:
    """GPM after task 0: ``r = #{k : cumsum(S²)_k / sum(S²) < threshold}`` leading directions."""
    U, S, _ = torch.linalg.svd(X.mT, full_matrices=False)
    energies = [s**2 for s in S.tolist()]
    r = 0
    for k in range(len(energies)):
        if sum(energies[: k + 1]) / sum(energies) < threshold:
            r += 1
    return U[:, :r]


def gpm_later_task(B: Tensor, X: Tensor, threshold: float) -> Tensor:
    """GPM after task t ≥ 1: residual directions are added one by one while the share is below the threshold."""
    R = X.mT
    residual = R - B @ B.mT @ R
    total = sum(s**2 for s in torch.linalg.svdvals(R).tolist())
    U, S, _ = torch.linalg.svd(residual, full_matrices=False)
    held = 1 - sum(s**2 for s in S.tolist()) / total
    r = 0
    for s in S.tolist():
        if held >= threshold:
            break
        held += s**2 / total
        r += 1
    return torch.cat([B, U[:, :r]], dim=1)[:, : len(R)]
