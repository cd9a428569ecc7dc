"""Training on datasets and loaders gives the numbers of training on tensors."""

import pytest
from torch.utils.data import DataLoader, TensorDataset

from codecl import CodeCL
from codecl.training.stream import as_part
from tests.training.small import assert_same_bits, small_stream, train


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x, y: as_part((x, y)),
        lambda x, y: as_part(TensorDataset(x, y)),
        lambda x, y: as_part(DataLoader(TensorDataset(x, y), batch_size=13, shuffle=True)),
    ],
    ids=["pair", "dataset", "loader"],
)
def test_datasets_and_loaders_give_the_numbers_of_tensors(wrap):
    plain, wrapped = train(CodeCL), train(CodeCL, small_stream(wrap=wrap))
    assert plain.progress.accuracy == wrapped.progress.accuracy
    assert_same_bits(plain.model.state_dict(), wrapped.model.state_dict())
