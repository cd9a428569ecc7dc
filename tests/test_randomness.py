"""Streams of random numbers: fixed for ever, independent of each other, and gone without a trace."""

import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codecl.randomness import derive, generator, seeded

names = st.lists(st.text(max_size=5) | st.integers(), max_size=4)


def drawn():
    """Some numbers from each global generator."""
    return torch.rand(3).tolist(), random.random(), np.random.rand()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((0,), 7_520_536_977_032_167_579),
        ((0, "init"), 5_178_188_355_558_464_636),
        ((0, "order", 0, 0), 7_416_363_760_113_895_254),
        ((1, "order", 0, 0), 8_437_569_148_401_002_071),
        ((-7, "dropout", 3, 199), 8_916_574_965_479_892_070),
        ((2**70, "ß"), 2_473_141_060_827_534_149),
    ],
)
def test_the_streams_never_change(path, value):
    """Runs of earlier versions are resumed and repeated: these numbers may not change."""
    assert derive(*path) == value


@given(st.integers(), names, st.integers(), names)
def test_other_names_other_streams(seed, path, other_seed, other):
    same = (seed, path) == (other_seed, other) and list(map(type, path)) == list(map(type, other))
    assert (derive(seed, *path) == derive(other_seed, *other)) == same
    assert 0 <= derive(seed, *path) < 2**63


def test_names_do_not_run_together():
    paths = [
        (1, 23),
        (12, 3),
        (1, "23"),
        (1, 2, 3),
        (1, "2", "3"),
        (1, "2,3"),
        (1, '2","3'),
        (1,),
        (1, ""),
        (1, "", ""),
    ]
    assert len({derive(*path) for path in paths}) == len(paths)


def test_streams_of_a_run_are_independent():
    """No two epochs share an order or a dropout stream, whatever half of the seed a generator uses."""
    paths = [(s, what, t, e) for s in range(3) for what in ("order", "dropout") for t in range(10) for e in range(20)]
    seeds = [derive(*path) for path in paths]
    assert len({seed & 0xFFFFFFFF for seed in seeds}) == len({seed >> 32 for seed in seeds}) == len(paths)
    draws = torch.stack([torch.randn(200, generator=generator(*path)) for path in paths[:100]])
    assert torch.corrcoef(draws).fill_diagonal_(0).abs().max() < 0.35  # five standard deviations of 1/√200


def test_call_order_does_not_matter():
    first = {t: torch.rand(4, generator=generator(0, "sample", t)).tolist() for t in (0, 1, 2)}
    torch.rand(100)
    with seeded(5, "evaluate"):
        again = {t: torch.rand(4, generator=generator(0, "sample", t)).tolist() for t in (2, 0, 1)}
    assert first == again


def test_a_generator_draws_from_nowhere_else():
    before = torch.get_rng_state()
    own = generator(0, "order", 1, 2)
    torch.randperm(10, generator=own)
    assert torch.equal(before, torch.get_rng_state())
    assert own.device.type == "cpu"
    assert own.initial_seed() == derive(0, "order", 1, 2)


def test_within_the_same_stream_the_same_numbers():
    results = []
    for path in [(0, "dropout", 1, 2), (0, "dropout", 1, 2), (0, "dropout", 1, 3)]:
        with seeded(*path):
            results.append(drawn())
        drawn()
    assert results[0] == results[1]
    assert all(a != b for a, b in zip(results[0], results[2], strict=True))


def test_each_generator_gets_the_whole_seed():
    seed = derive(0, "init")
    with seeded(0, "init"):
        numbers = drawn()
    halves = np.random.RandomState([seed >> 32, seed & 0xFFFFFFFF])
    assert numbers == (
        torch.rand(3, generator=generator(0, "init")).tolist(),
        random.Random(seed).random(),
        halves.rand(),
    )


def test_afterwards_every_generator_is_where_it_was():
    torch.manual_seed(11), random.seed(12), np.random.seed(13)
    drawn()
    torch.randn(1), random.gauss(0, 1), np.random.randn()  # half of a pair is left over in each
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    expected = drawn(), torch.randn(1).item(), random.gauss(0, 1), np.random.randn()
    torch.set_rng_state(states[0]), random.setstate(states[1]), np.random.set_state(states[2])
    with seeded(0, "init"):
        drawn()
        with seeded(1, "init"):
            drawn()
    assert (drawn(), torch.randn(1).item(), random.gauss(0, 1), np.random.randn()) == expected
    assert torch.initial_seed() == 11


def test_after_an_exception_too():
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    expected = drawn()
    torch.manual_seed(3), random.seed(3), np.random.seed(3)

    def fails():
        with seeded(0, "dropout", 0, 0):
            drawn()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fails()
    assert drawn() == expected


def test_nested_streams_do_not_disturb_each_other():
    with seeded(0, "dropout"):
        plain = drawn(), drawn()
    with seeded(0, "dropout"):
        first = drawn()
        with seeded(0, "evaluate"):
            drawn()
        assert (first, drawn()) == plain


def test_devices_in_use_are_restored_and_others_seeded(monkeypatch):
    """Without a GPU here, its generator is played."""
    calls = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: ["state of cuda:0", "state of cuda:1"])
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", lambda states: calls.append(("restored", states)))
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: calls.append(("seeded", seed)))
    torch.manual_seed(21)
    calls.clear()
    with seeded(0, "init"):
        calls.append("inside")
    restored = ("restored", ["state of cuda:0", "state of cuda:1"])
    assert calls == [("seeded", derive(0, "init")), "inside", ("seeded", 21), restored]


@pytest.mark.slow
def test_numpy_is_not_needed(tmp_path):
    """Neither here nor for checkpoints, which have to get at the bytes of tensors."""
    script = """
import sys
sys.modules["numpy"] = None
import torch
from codecl import randomness
from codecl.training import checkpoint
with randomness.seeded(0, "init"):
    checkpoint.save(sys.argv[1], torch.rand(4))
print(checkpoint.load(sys.argv[1]).tolist())
"""
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "file")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == str(torch.rand(4, generator=generator(0, "init")).tolist())


@pytest.mark.parametrize(
    "path", [("0", "init"), (True, "init"), (0.0,), (0, None), (0, 1.5), (0, True), (np.int64(1),)]
)
def test_seeds_and_names_are_checked(path):
    with pytest.raises(TypeError, match="a seed is an int and names are str or int; got"):
        derive(*path)
