"""Kept samples as state: they come back in their order, and another number of them is refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codecl.method.state import ForeignState
from codecl.methods.a_gem import AGEM
from codecl.methods.er import ER
from codecl.methods.replay import Sample, pack, unpack
from tests.methods.replay_cases import network
from tests.methods.replay_loops import batches, own_loop

samples = st.lists(
    st.builds(
        lambda t, v: Sample(torch.full((t + 1, 2), v, dtype=torch.uint8), torch.tensor(v % 3), t),
        st.integers(0, 3),
        st.integers(0, 255),
    ),
    max_size=12,
)


@given(samples)
def test_packed_samples_come_back_in_their_order(kept):
    back = unpack(pack(kept))
    assert len(back) == len(kept)
    for one, other in zip(back, kept, strict=True):
        assert one.task == other.task
        assert one.x.dtype == torch.uint8
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.y, other.y)


@pytest.mark.parametrize(("small", "large"), [(AGEM, {"memory_per_class": 5}), (ER, {"memory": 50})])
def test_a_state_with_another_number_of_samples_is_refused(small, large):
    method = small(network(), **large)
    own_loop(method, [batches(0)])
    (setting, value), state = next(iter(large.items())), method.state_dict()
    other = small(network(), **{setting: 2})
    with pytest.raises(ForeignState, match=f"kept with {setting} = {value}; here it is {setting} = 2"):
        other.load_state_dict(state)
    assert other.samples_kept() == []
