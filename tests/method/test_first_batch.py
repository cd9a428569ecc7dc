"""One batch is looked at before the first task, and what could not be protected later is refused then."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from codecl import GPM, Method, UnseenUse
from tests.layers.cases import normal, redrawn


class PastItsModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x):
        return F.linear(self.norm(self.a(x)), self.b.weight)


def net():
    return redrawn(PastItsModule(), dtype=torch.float32)


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("model", "message"),
    [(net(), "'b.weight' is used by linear"), (nn.Sequential(Doubled(4, 2)), "'0' is Doubled, whose forward is not")],
)
def test_a_use_without_rows_is_refused_before_anything_is_learned(model, message):
    method = GPM(model)
    with pytest.raises(UnseenUse, match=message):
        method.begin_task(0, [normal(0, 5, 4, dtype=torch.float32)])
    assert (method.tasks, method.is_learning) == ([], False)


def test_without_a_batch_to_look_at_it_is_refused_at_the_end():
    x = normal(0, 5, 4, dtype=torch.float32)
    for loader in (None, iter([x])):
        method = GPM(net())
        method.begin_task(0, loader)
        with pytest.raises(UnseenUse, match=r"'b.weight' is used by linear"):
            method.end_task([x])


def test_a_generator_keeps_its_batches():
    batches = (normal(i, 5, 4, dtype=torch.float32) for i in range(2))
    GPM(nn.Sequential(nn.Linear(4, 2))).begin_task(0, batches)
    assert len(list(batches)) == 2


def test_looking_leaves_everything_as_it_was():
    model = redrawn(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2)))
    data = torch.utils.data.TensorDataset(normal(0, 20, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=5, shuffle=True)
    model[1].eval()
    before, flags = {k: v.clone() for k, v in model.state_dict().items()}, [m.training for m in model.modules()]
    state = torch.get_rng_state()
    method = GPM(model)
    method.begin_task(0, loader)
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in model.modules()] == flags
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(weight.rows_seen for weight in method.weights.values())


def test_the_order_of_a_loader_with_a_generator_of_its_own_stays():
    def order(look):
        generator = torch.Generator().manual_seed(3)
        data = torch.utils.data.TensorDataset(normal(0, 20, 4, dtype=torch.float32))
        loader = torch.utils.data.DataLoader(data, batch_size=5, shuffle=True, generator=generator)
        if look:
            GPM(nn.Sequential(nn.Linear(4, 2))).begin_task(0, loader)
        return torch.cat([x for (x,) in loader])

    assert torch.equal(order(True), order(False))


def test_only_the_first_task_and_only_a_method_that_protects_looks():
    seen = []

    class Loader:
        def __iter__(self):
            seen.append(1)
            return iter([normal(0, 5, 4, dtype=torch.float32)])

    free = Method(net())
    free.begin_task(0, Loader())
    assert seen == []
    method = GPM(nn.Sequential(nn.Linear(4, 2)))
    method.begin_task(0, Loader())
    looked = len(seen)
    assert looked >= 1
    method.end_task([normal(0, 5, 4, dtype=torch.float32)])
    method.begin_task(1, Loader())
    assert len(seen) == looked
