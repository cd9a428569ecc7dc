"""Wrong input gets one clear error each; degenerate input that has a right answer gets the right answer."""

import math

import pytest
import torch
from torch import Tensor

from codecl.algebra import Conceptor, Moments, Subspace
from tests.algebra.cases import assert_matrix, generator, normal, orthonormal

FITS = {
    "conceptor": lambda rows: Conceptor.fit(rows, 2.0),
    "moments": Moments.of,
    "subspace": lambda rows: Subspace.fit(rows, 0.9),
    "growth": lambda rows: Subspace.zero(3).grow(rows, 0.9),
}
every_fit = pytest.mark.parametrize("fit", FITS.values(), ids=FITS)


def some_conceptor(d: int = 3) -> Conceptor:
    return Conceptor.fit(normal(generator(0), 2, d), 1.0)


# Rows that cannot be fitted


@every_fit
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("n", [2, 9])
def test_rows_that_are_not_finite(fit, bad, dtype, n):
    X = normal(generator(0), n, 3).to(dtype)
    X[1, 2] = bad
    with pytest.raises(ValueError, match=rf"NaN or infinite values \(1 of {n} rows\)"):
        fit(X)


@every_fit
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_no_rows_or_no_dimensions(fit, shape):
    with pytest.raises(ValueError, match=r"nothing to fit.*at least one row"):
        fit(torch.zeros(shape))


@every_fit
@pytest.mark.parametrize("rows", [torch.zeros(3), torch.zeros(2, 3, 4), [[1.0, 2.0]], None])
def test_rows_that_are_not_a_matrix(fit, rows):
    with pytest.raises(ValueError, match=r"rows must be a tensor \[n, d\]"):
        fit(rows)


@every_fit
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_rows_that_are_not_real_numbers(fit, dtype):
    with pytest.raises(ValueError, match="floating point; got torch"):
        fit(torch.zeros(2, 3, dtype=dtype))


# Arguments out of range


@pytest.mark.parametrize("value", [0, 0.0, -1.0, math.nan, math.inf])
def test_aperture_and_gamma_must_be_above_0(value):
    with pytest.raises(ValueError, match=f"aperture must be a finite number above 0; got {value}"):
        Conceptor.fit(torch.ones(2, 3), value)
    with pytest.raises(ValueError, match=f"gamma must be a finite number above 0; got {value}"):
        some_conceptor().adapt(value)


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_cut_needs_a_singular_value(value):
    with pytest.raises(ValueError, match=f"lies in .0, 1.*got {value}"):
        some_conceptor().cut(value)


def test_top_needs_a_count():
    with pytest.raises(ValueError, match="not be negative; got -1"):
        some_conceptor().top(-1)


@pytest.mark.parametrize("energy", [0.0, -0.5, 1.5, math.nan])
def test_energy_is_a_share(energy):
    with pytest.raises(ValueError, match=f"share in .0, 1.; got {energy}"):
        Subspace.fit(torch.ones(2, 3), energy)


def test_rule_is_one_of_two():
    with pytest.raises(ValueError, match="'below' or 'reach'; got 'above'"):
        Subspace.fit(torch.ones(2, 3), 0.9, "above")


# Dimensions that do not match


@pytest.mark.parametrize("rests", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_conceptors_of_different_dimensions(rests):
    A, B = (~some_conceptor(d) if rest else some_conceptor(d) for d, rest in zip((3, 4), rests, strict=True))
    for verb, operation in {"OR": A.__or__, "AND": A.__and__, "compare": A.similarity}.items():
        with pytest.raises(ValueError, match=f"cannot {verb} a conceptor of dimension 3 with one of dimension 4"):
            operation(B)


def test_moments_and_subspaces_of_different_dimensions():
    with pytest.raises(ValueError, match="moments of dimension 3 and 4"):
        Moments.of(torch.ones(2, 3)) + Moments.of(torch.ones(2, 4))
    with pytest.raises(ValueError, match="dimension 3 cannot grow by rows of dimension 4"):
        Subspace.zero(3).grow(torch.ones(2, 4), 0.9)
    with pytest.raises(ValueError, match="subspaces of dimension 3 and 4"):
        Subspace.zero(3).overlap(Subspace.zero(4))


@pytest.mark.parametrize("operation", ["__or__", "__and__"])
def test_conceptors_combine_with_conceptors_only(operation):
    assert getattr(some_conceptor(), operation)(torch.eye(3)) is NotImplemented
    with pytest.raises(TypeError, match="unsupported operand"):
        some_conceptor() | 1
    with pytest.raises(TypeError, match="unsupported operand"):
        some_conceptor() & None
    with pytest.raises(TypeError, match="unsupported operand"):
        Moments.of(torch.ones(2, 3)) + 1


# Spectra and stored tensors that describe no conceptor


@pytest.mark.parametrize("odds", [0.0, -1.0, math.inf, math.nan])
def test_odds_lie_strictly_between_0_and_infinity(odds):
    with pytest.raises(ValueError, match="strictly between 0 and ∞"):
        Conceptor.from_spectrum(torch.eye(3)[:, :1], torch.tensor([odds]))


@pytest.mark.parametrize("rest", [2, -1, 0.5])
def test_rest_is_0_or_1(rest):
    with pytest.raises(ValueError, match=f"rest must be 0 or 1; got {rest}"):
        Conceptor.from_spectrum(torch.eye(3), torch.ones(3), rest)


@pytest.mark.parametrize(("basis", "odds"), [((3, 2), (3,)), ((3,), (3,)), ((3, 2), (2, 1))])
def test_a_spectrum_has_one_number_for_each_direction(basis, odds):
    with pytest.raises(ValueError, match=r"basis must be \[d, k\] and odds \[k\]"):
        Conceptor.from_spectrum(torch.ones(basis), torch.ones(odds))


@pytest.mark.parametrize("basis", [torch.ones(3, 2), 2 * torch.eye(3), math.nan * torch.eye(3), torch.eye(4)[:3]])
def test_a_basis_is_orthonormal(basis):
    with pytest.raises(ValueError, match="orthonormal"):
        Conceptor.from_spectrum(basis, torch.ones(basis.shape[1]))
    with pytest.raises(ValueError, match="orthonormal basis"):
        Subspace(basis)


def damaged() -> dict[str, dict[str, Tensor]]:
    sound = some_conceptor().tensors()
    factor, rest = sound["factor"], sound["rest"]
    broken, zeroed = factor.clone(), factor.clone()
    broken[0, 0], zeroed[:, 1] = math.nan, 0.0
    return {
        "no rest": {"factor": factor},
        "another tensor": {**sound, "aperture": torch.tensor(1.0)},
        "float32": {"factor": factor.float(), "rest": rest},
        "one dimension": {"factor": factor[:, 0], "rest": rest},
        "wider than high": {"factor": factor.mT.contiguous(), "rest": rest},
        "NaN": {"factor": broken, "rest": rest},
        "odds of 0": {"factor": zeroed, "rest": rest},
        "skewed": {"factor": factor + factor.flip(1), "rest": rest},
        "rest 2": {"factor": factor, "rest": torch.tensor(2)},
        "rest one half": {"factor": factor, "rest": torch.tensor(0.5)},
        "two rests": {"factor": factor, "rest": torch.tensor([0, 1])},
    }


@pytest.mark.parametrize("name", damaged())
def test_damaged_tensors_are_refused(name):
    with pytest.raises(ValueError, match="stored conceptor"):
        Conceptor.from_tensors(damaged()[name])


# Degenerate input with a right answer


def diagonal(*values: float) -> Tensor:
    return torch.diag(torch.tensor(values, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 2, 9])
def test_all_zero_rows_are_the_zero_conceptor_and_the_zero_subspace(n, dtype):
    X = torch.zeros(n, 3, dtype=dtype)
    C = Conceptor.fit(X, 2.0)
    assert (C.dim, C.rank, C.rest, C.capacity) == (3, 0, 0, 0.0)
    assert_matrix(C, diagonal(0, 0, 0), atol=0)
    assert C.adapt(100.0).capacity == 0
    assert Subspace.fit(X, 0.9).rank == 0
    assert Subspace.fit(X, 0.9, "reach").rank == 0
    S = Subspace(torch.eye(3, dtype=torch.float64)[:, :2])
    assert torch.equal(S.grow(X, 0.9).basis, S.basis)


def test_one_row():
    """x = (3, 4): one direction of odds a² ‖x‖² = 25 a²."""
    C = Conceptor.fit(torch.tensor([[3.0, 4.0]]), 0.2)
    torch.testing.assert_close(C.odds, torch.tensor([1.0], dtype=torch.float64))
    u = torch.tensor([0.6, 0.8], dtype=torch.float64)
    assert_matrix(C, 0.5 * torch.outer(u, u))
    S = Subspace.fit(torch.tensor([[3.0, 4.0]]), 0.9, "reach")
    assert_matrix(S.basis @ S.basis.mT, torch.outer(u, u))


def test_one_dimension():
    """R = (1 + 9) / 2 = 5; at a = 2 the odds are 20."""
    C = Conceptor.fit(torch.tensor([[1.0], [3.0]]), 2.0)
    assert_matrix(C, diagonal(20 / 21))
    assert_matrix(~C, diagonal(1 / 21))
    assert_matrix(C | C, diagonal(40 / 41))
    assert_matrix(C & C, diagonal(10 / 11))
    assert_matrix(C & Conceptor.zero(1), diagonal(0), atol=0)
    assert_matrix(C | Conceptor.identity(1), diagonal(1), atol=0)
    assert C.similarity(~C) == pytest.approx(1.0)
    assert Subspace.fit(torch.tensor([[1.0], [3.0]]), 0.9, "reach").rank == 1


@pytest.mark.parametrize("times", [2, 50])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_repeated_rows_are_one_direction(times, dtype):
    x = torch.tensor([0.0, 3.0, 4.0], dtype=dtype)
    C = Conceptor.fit(x.repeat(times, 1), 0.2)
    assert C.rank == 1
    u = x.double() / 5
    assert_matrix(C, 0.5 * torch.outer(u, u))
    assert Subspace.fit(x.repeat(times, 1), 0.9, "reach").rank == 1


def test_a_column_of_zeros_is_outside():
    C = Conceptor.fit(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), 1.0)
    assert_matrix(C, diagonal(0.5, 0))
    assert_matrix(~C, diagonal(0.5, 1))


@pytest.mark.parametrize("d", [1, 3])
def test_zero_and_identity(d):
    zero, one = Conceptor.zero(d), Conceptor.identity(d)
    I = torch.eye(d, dtype=torch.float64)  # noqa: E741
    for C, value in {
        zero: 0, one: 1, ~zero: 1, ~one: 0, zero | zero: 0, zero | one: 1, one | zero: 1, one | one: 1,
        zero & zero: 0, zero & one: 0, one & zero: 0, one & one: 1, zero.adapt(9.0): 0, one.adapt(9.0): 1,
        zero.cut(0.5): 0, one.cut(0.5): 1,
    }.items():  # fmt: skip
        assert_matrix(C, value * I, atol=0)
        assert C.capacity == value
        assert C.top(5).shape == (d, d * value)
    assert one.similarity(one) == pytest.approx(1.0)
    assert zero.similarity(one) == zero.similarity(zero) == 0


def test_orthogonal_operands():
    """Ranges that share nothing: OR puts them side by side, AND is empty, and they are not similar."""
    E = torch.eye(3, dtype=torch.float64)
    A = Conceptor.from_spectrum(E[:, :1], torch.tensor([1.0]))
    B = Conceptor.from_spectrum(E[:, 1:2], torch.tensor([3.0]))
    assert_matrix(A | B, diagonal(0.5, 0.75, 0))
    assert_matrix(A & B, diagonal(0, 0, 0), atol=0)
    assert A.similarity(B) == 0
    assert_matrix(~A & B, diagonal(0, 0.75, 0))
    assert_matrix(A | ~B, diagonal(1, 0.25, 1))
    assert_matrix(~A & ~B, diagonal(0.5, 0.25, 1))


def test_odds_beyond_the_range_of_float64_saturate():
    """s is then 0 or 1 to every digit, and nothing becomes infinite or NaN."""
    C = Conceptor.from_spectrum(torch.eye(2), torch.ones(2))
    huge, tiny = C.adapt(1e200), C.adapt(1e-200)
    assert_matrix(huge, diagonal(1, 1), atol=1e-15)
    assert_matrix(~huge, diagonal(0, 0), atol=1e-290)
    assert_matrix(tiny, diagonal(0, 0), atol=1e-290)
    assert_matrix(huge | C, diagonal(1, 1), atol=1e-15)
    assert bool(torch.isfinite(huge.factor).all())
    with_rest = Conceptor.from_spectrum(torch.eye(2)[:, :1], torch.ones(1), rest=1)
    assert_matrix(with_rest.adapt(1e-200), diagonal(0, 1), atol=1e-15)
    assert_matrix(with_rest.adapt(1e200), diagonal(1, 1), atol=1e-15)


def test_a_full_subspace_grows_no_further():
    S = Subspace(orthonormal(generator(0), 3, 3))
    assert S.grow(normal(generator(1), 5, 3), 1.0).rank == 3
    assert S.complement().rank == 0
    assert Subspace.zero(3).complement().rank == 3
