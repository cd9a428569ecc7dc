"""Rules: scripted epochs, a literal reading of methods.md as reference, the formula of annealing, and resuming."""

import doctest
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codecl.training import schedule
from codecl.training.schedule import AccuracyRule, AnnealedRule, Diverged, LossRule, Verdict

BETTER = Verdict(improved=True, stop=False)
WORSE = Verdict(improved=False, stop=False)
STOP = Verdict(improved=False, stop=True)


def literal_loss(losses, lr, P, f, lr_min):
    """methods.md section 3, word by word: the learning rate after each epoch, which were best, when it ended."""
    best, patience, rates, stored = math.inf, P, [], []
    for epoch, val_loss in enumerate(losses):
        if val_loss < best:
            best = val_loss
            stored.append(epoch)
            patience = P
        else:
            patience -= 1
            if patience == 0:
                lr /= f
                if lr < lr_min:
                    return [*rates, lr], stored, epoch
                patience = P
        rates.append(lr)
    return rates, stored, None


def literal_accuracy(accuracies, lr, patience, flag, threshold, halving):
    """methods.md 4.1, "Optimisation", word by word."""
    best, counter, book, rates, stored = -1.0, 0, lr, [], []
    for epoch, accuracy in enumerate(accuracies):
        if accuracy > best:
            best = accuracy
            stored.append(epoch)
            counter = 0
        else:
            counter += 1
            if counter > patience:
                lr /= halving
                book /= flag
                counter = 0
            elif book < threshold:
                return [*rates, lr], stored, epoch
        rates.append(lr)
    return rates, stored, None


def played(rule, epochs):
    """The same three things from a rule that is told ``(loss, accuracy)`` after each epoch."""
    rates, stored = [], []
    for epoch, (loss, accuracy) in enumerate(epochs):
        verdict = rule.update(loss, accuracy)
        rates.append(rule.lr)
        if verdict.improved:
            stored.append(epoch)
        if verdict.stop:
            return rates, stored, epoch
    return rates, stored, None


def until_stop(rule):
    """Epochs and learning rates of a task whose first epoch is the best."""
    rates = []
    for epoch in range(1, 1000):
        rates.append(rule.lr)
        verdict = rule.update(1.0, 50.0)
        if verdict.stop:
            return epoch, sorted(set(rates), reverse=True)
    raise AssertionError("never stopped")


# Few values, so that ties and long droughts are common; 0.1/2² is 0.025 to the bit, which is not below 0.025.
few = st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0])
rates, factors, bounds = st.sampled_from([0.1, 0.01]), st.sampled_from([2.0, 3.0]), st.sampled_from([0.025, 0.001])
settings = st.tuples(rates, st.integers(1, 3), factors, bounds)
sequences = st.lists(st.tuples(few, few), max_size=60)


@given(sequences, settings)
def test_loss_rule_is_the_described_one(epochs, chosen):
    assert played(LossRule(*chosen), epochs) == literal_loss([loss for loss, _ in epochs], *chosen)


@given(sequences, settings, st.sampled_from([2.0, 5.0]))
def test_accuracy_rule_is_the_described_one(epochs, chosen, decay):
    expected = literal_accuracy([accuracy for _, accuracy in epochs], *chosen, decay)
    assert played(AccuracyRule(*chosen, decay=decay), epochs) == expected


@given(sequences, settings, st.sampled_from([LossRule, AccuracyRule]), st.integers(0, 60))
def test_resuming_equals_no_interruption(epochs, chosen, kind, moment):
    straight, first, second = kind(*chosen), kind(*chosen), kind(*chosen)
    for epoch, scores in enumerate(epochs):
        if straight.stopped:
            break
        if epoch == moment:
            second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
            first = second
        assert straight.update(*scores) == first.update(*scores)
        assert straight.lr == first.lr
        assert straight.state_dict() == first.state_dict()


def test_loss_rule_step_by_step():
    rule = LossRule(lr=0.8, patience=2, factor=2, min_lr=0.4)
    script = [
        (5.0, BETTER, 0.8),
        (4.0, BETTER, 0.8),
        (4.0, WORSE, 0.8),  # a tie is no improvement
        (3.9, BETTER, 0.8),  # and the count begins again
        (4.5, WORSE, 0.8),
        (4.5, WORSE, 0.4),  # not below min_lr
        (4.5, WORSE, 0.4),
        (4.5, STOP, 0.2),
    ]
    for loss, verdict, lr in script:
        assert (rule.update(loss, 0.0), rule.lr) == (verdict, lr)
    assert rule.stopped


@given(sequences, settings, st.sampled_from([LossRule, AccuracyRule]))
def test_without_going_back_to_the_best_the_last_counts_and_nothing_else_changes(epochs, chosen, kind):
    rates, _, end = played(kind(*chosen), epochs)
    kept = list(range(len(rates)))
    assert played(kind(*chosen, restore=False), epochs) == (rates, kept, end)


def test_books_at_the_threshold_are_not_below_it():
    rule = AccuracyRule(lr=0.8, patience=1, factor=2, threshold=0.4)
    verdicts = [rule.update(1.0, 50.0) for _ in range(6)]
    assert verdicts == [BETTER, WORSE, WORSE, WORSE, WORSE, STOP]


def test_accuracy_rule_step_by_step():
    """Real lr halved although the factor is 3; stops only on a bad epoch after the books are below the threshold."""
    rule = AccuracyRule(lr=0.8, patience=1, factor=3, threshold=0.3)
    script = [
        (50.0, BETTER, 0.8),
        (50.0, WORSE, 0.8),
        (50.0, WORSE, 0.4),  # the second bad epoch of patience 1; books 0.267
        (51.0, BETTER, 0.4),
        (52.0, BETTER, 0.4),
        (52.0, STOP, 0.4),
    ]
    for accuracy, verdict, lr in script:
        assert (rule.update(1.0, accuracy), rule.lr) == (verdict, lr)


@pytest.mark.parametrize(
    ("chosen", "decays", "epochs"),
    [((0.01, 6, 2, 1e-5), 10, 1 + 10 * 6), ((0.1, 5, 3, 1e-3), 5, 1 + 5 * 5), ((0.05, 6, 2, 5e-5), 10, 1 + 10 * 6)],
)
def test_decays_of_the_loss_rule_as_published(chosen, decays, epochs):
    """methods.md section 3. The last decay is the end: no epoch is trained with it."""
    rule = LossRule(*chosen)
    count, rates = until_stop(rule)
    assert count == epochs
    assert rates == pytest.approx([chosen[0] / chosen[2] ** k for k in range(decays)])
    assert rule.lr == pytest.approx(chosen[0] / chosen[2] ** decays)


@pytest.mark.parametrize(("chosen", "decays"), [((0.1, 5, 3, 1e-3), 5), ((0.1, 6, 2, 1e-5), 14)])
def test_decays_of_the_accuracy_rule_as_published(chosen, decays):
    """methods.md 4.1. Each decay takes patience + 1 epochs, and one more bad epoch is trained with the last."""
    rule = AccuracyRule(*chosen)
    count, rates = until_stop(rule)
    assert count == 1 + decays * (chosen[1] + 1) + 1
    assert rates == pytest.approx([0.1 / 2**k for k in range(decays + 1)])
    assert rule.lr == pytest.approx(0.1 / 2**decays)


def test_the_decay_of_the_accuracy_rule_can_be_chosen():
    rule = AccuracyRule(0.9, 1, 2, 0.1, decay=3)
    until_stop(rule)
    assert rule.lr == pytest.approx(0.9 / 3**4)  # 0.9/2⁴ is the first below 0.1


@pytest.mark.parametrize("kind", [LossRule, AccuracyRule])
@pytest.mark.parametrize("epoch", [(math.nan, 50.0), (math.inf, 50.0), (1.0, math.nan)])
def test_divergence_is_an_error_and_changes_nothing(kind, epoch):
    rule = kind(0.1, 2, 2, 0.01)
    rule.update(1.0, 50.0)
    before = rule.state_dict()
    with pytest.raises(Diverged, match=r"(nan|inf).*learning rate 0.1.*Lower the learning rate"):
        rule.update(*epoch)
    assert rule.state_dict() == before


@pytest.mark.parametrize("kind", [LossRule, AccuracyRule])
def test_the_first_epoch_always_improves(kind):
    assert kind(0.1, 1, 2, 0.01).update(1e30, 0.0) == BETTER


@pytest.mark.parametrize("kind", [LossRule, AccuracyRule])
def test_after_the_end_there_is_no_epoch(kind):
    rule = kind(0.1, 1, 2, 0.09)
    until_stop(rule)
    again = kind(0.1, 1, 2, 0.09)
    again.load_state_dict(rule.state_dict())
    for over in (rule, again):
        with pytest.raises(RuntimeError, match="this task is over"):
            over.update(0.0, 100.0)


def test_the_state_is_a_copy_and_belongs_to_one_rule():
    rule, other = LossRule(0.1, 1, 2, 0.01), AccuracyRule(0.1, 1, 2, 0.01)
    rule.state_dict()["lr"] = 7
    state = rule.state_dict()
    rule.load_state_dict(state)
    rule.update(1.0, 1.0)
    assert rule.lr == 0.1
    assert state["best"] is None
    with pytest.raises(ValueError, match=r"the state has .*book.*LossRule expects"):
        rule.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="AccuracyRule expects"):
        other.load_state_dict(rule.state_dict())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lr": 0.0}, "lr must be a finite number above 0; got 0.0"),
        ({"lr": math.inf}, "lr must be"),
        ({"patience": 0}, "patience must be a finite number above 0"),
        ({"patience": 1.5}, "patience is a number of epochs; got 1.5"),
        ({"factor": 1.0}, "factor must be a finite number above 1"),
        ({"threshold": 0.0}, "threshold must be"),
        ({"threshold": math.nan}, "threshold must be"),
        ({"decay": 0.5}, "decay must be a finite number above 1; got 0.5"),
    ],
)
def test_settings_are_checked(changed, message):
    with pytest.raises(ValueError, match=message):
        AccuracyRule(**({"lr": 0.1, "patience": 1, "factor": 2, "threshold": 0.01} | changed))


def test_settings_of_the_loss_rule_are_checked():
    with pytest.raises(ValueError, match=r"min_lr must be a finite number above 0; got -1\.0"):
        LossRule(0.1, 1, 2, -1.0)
    with pytest.raises(ValueError, match="factor must be a finite number above 1"):
        LossRule(0.1, 1, 1, 0.01)


# Annealing.


@given(st.integers(1, 60), st.floats(0, 0.9), rates)
def test_annealed_rates_are_those_of_the_formula(steps, warm_up, lr):
    rule = AnnealedRule(lr, warm_up)
    warm = round(warm_up * steps)
    found = [rule.rate(k, steps) for k in range(steps)]
    for k, rate in enumerate(found):
        expected = lr * (k + 1) / warm if k < warm else lr * (1 + math.cos(math.pi * (k - warm) / (steps - warm))) / 2
        assert rate == pytest.approx(expected, rel=1e-12)
    assert all(0 < rate <= lr for rate in found)
    assert max(found) == lr
    top = found.index(lr)
    assert found == sorted(found[:top]) + sorted(found[top:], reverse=True)  # up, then down


def test_annealing_ends_nearly_at_zero():
    assert AnnealedRule(1.0).rate(999, 1000) < 5e-6


def test_the_example_in_the_docstring():
    assert doctest.testmod(schedule) == (0, 1)


def test_annealing_never_stops_and_the_rate_depends_on_the_step_alone():
    rule = AnnealedRule(0.1)
    before = rule.rate(7, 20)
    for loss in (1.0, 2.0, 3.0, 4.0):
        assert rule.update(loss, 1.0) == BETTER  # the last counts
    assert rule.rate(7, 20) == before
    assert not rule.stopped


def test_the_best_of_annealed_epochs_is_the_later_of_equal_ones():
    rule = AnnealedRule(0.1, keep="best")
    assert [rule.update(1.0, accuracy).improved for accuracy in (50, 60, 55, 60, 59, 61)] == [1, 1, 0, 1, 0, 1]


@given(sequences, st.sampled_from(["last", "best"]), st.integers(0, 60))
def test_resuming_annealing_equals_no_interruption(epochs, keep, moment):
    straight, resumed = AnnealedRule(0.1, keep=keep), AnnealedRule(0.1, keep=keep)
    for epoch, scores in enumerate(epochs):
        if epoch == moment:
            state = json.loads(json.dumps(resumed.state_dict()))
            resumed = AnnealedRule(0.1, keep=keep)
            resumed.load_state_dict(state)
        assert straight.update(*scores) == resumed.update(*scores)


def test_divergence_under_annealing_is_an_error():
    with pytest.raises(Diverged, match=r"nan.*learning rate 0.1.*Lower"):
        AnnealedRule(0.1).update(math.nan, 50.0)


@pytest.mark.parametrize("changed", [{"warm_up": 1.0}, {"warm_up": -0.1}, {"warm_up": math.nan}, {"lr": 0.0}])
def test_settings_of_annealing_are_checked(changed):
    with pytest.raises(ValueError, match=f"{next(iter(changed))} "):
        AnnealedRule(**{"lr": 0.1} | changed)
