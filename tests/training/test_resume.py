"""Training that goes on from what was stored ends in the numbers and records of training that never stopped."""

from dataclasses import replace

import pytest

from codecl import CodeCL
from codecl.training.check import Memory
from tests.marks import slow_but
from tests.training.small import PLAN, assert_same_bits, small_stream, train
from tests.training.storage import Interrupted, Storage


@pytest.mark.parametrize(
    "rule",
    slow_but(
        [{"rule": "loss"}, {"rule": "accuracy"}, {"rule": "annealed"}, {"rule": "annealed", "keep": "best"}],
        {"rule": "loss"},
    ),
)
def test_rule_and_momentum_go_on_where_they_were(rule):
    """From every write of a run in which the learning rate falls and momentum builds up."""
    plan = replace(PLAN, **rule, momentum=0.9, lr=0.2, min_lr=0.05, decay=1.5, epochs=5)
    rates = []
    whole = train(CodeCL, small_stream(2), plan, observers=(lambda e: rates.append(e.get("lr")),))
    assert len(set(rates)) > 2
    store = Memory()
    train(CodeCL, small_stream(2), plan, store)
    assert len(store.copies) == 2 + sum(whole.progress.epochs)
    for number, copied in enumerate(store.copies, start=1):
        resumed = train(CodeCL, small_stream(2), plan, copied)
        assert resumed.progress.accuracy == whole.progress.accuracy, number
        assert resumed.progress.epochs == whole.progress.epochs
        assert_same_bits(resumed.model.state_dict(), whole.model.state_dict())


@pytest.mark.parametrize("writes", [3, 12])
def test_a_run_that_goes_on_records_the_same(writes):
    storage = Storage(writes)
    with pytest.raises(Interrupted):
        train(store=storage)
    storage.writes = -1
    assert train(store=storage).progress.moved == train().progress.moved
