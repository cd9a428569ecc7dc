"""A stopped run goes on where it was, to the numbers of a whole one, with other data or versions only if told to."""

import pytest
import torch

from codecl.runs.provenance import data_digest
from codecl.runs.run import run
from codecl.runs.rundir import RunDirectory
from codecl.training import checkpoint
from codecl.training.stream import FromDataset, Stream, Task, Tensors
from tests.runs.directories import RECIPE, Stop, assert_same_numbers, go_on, stop_at
from tests.runs.running import codecl, log_of, result_of

pytestmark = pytest.mark.slow


def test_a_stopped_run_goes_on_after_its_last_saved_epoch(stopped, whole):
    assert sum(e["event"] == "epoch" for e in log_of(stopped)) == 6
    assert go_on(stopped) == ([], [(1, 2, [3])])
    assert_same_numbers(stopped, whole)
    assert result_of(stopped)["epochs"] == [3, 3, 3]


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (("epoch", 0, 1), (0, 0, [])),
        (("task", 0), (0, 3, [])),
        (("epoch", 1, 1), (1, 0, [3])),
        (("task", 2), (2, 3, [3, 3])),
    ],
    ids=str,
)
def test_it_goes_on_from_anywhere(event, expected, whole, tmp_path):
    with pytest.raises(Stop):
        run(RECIPE, RunDirectory(tmp_path / "run"), (stop_at(*event),))
    assert go_on(tmp_path / "run") == ([], [expected])
    assert_same_numbers(tmp_path / "run", whole)


def test_seconds_add_up_over_a_stop(stopped):
    before = checkpoint.load(stopped / "epoch.ckpt")["seconds"]
    slow = checkpoint.load(stopped / "epoch.ckpt") | {"seconds": dict.fromkeys(before, 1000.0)}
    checkpoint.save(stopped / "epoch.ckpt", slow)
    go_on(stopped)
    assert all(1000 < value < 1100 for value in result_of(stopped)["seconds"].values())


@pytest.mark.parametrize("left", [[], ["lock"], ["lock", "recipe.toml.new"]], ids=str)
def test_what_a_run_killed_in_its_first_moments_leaves_is_no_obstacle(left, whole, tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    for name in left:
        (path / name).write_text("" if name == "lock" else 'method = "code-c')
    assert go_on(path) == ([], [])
    assert_same_numbers(path, whole)


# What numbers depend on besides the recipe.


@pytest.mark.parametrize("name", ["data", "torch", "codecl"])
def test_a_run_goes_on_with_other_data_or_versions_only_if_that_is_accepted(name, stopped, whole, capsys):
    for file in stopped.glob("*.ckpt"):
        tree = checkpoint.load(file)
        checkpoint.save(file, tree | {"made_with": tree["made_with"] | {name: "0.0"}})
    log = (stopped / "log.jsonl").read_bytes()
    code, out, err = codecl(capsys, "run", "--resume", stopped, "--quiet")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.endswith(f"To go on all the same: --accept {name}\n")
    assert ("other data" if name == "data" else f"{name} 0.0, and this is") in err
    assert (stopped / "log.jsonl").read_bytes() == log
    assert codecl(capsys, "run", "--resume", stopped, "--quiet", "--accept", name)[0] == 0
    assert_same_numbers(stopped, whole)


def test_the_digest_tells_other_data_and_not_other_copies():
    labels = torch.arange(4)

    def stream(x, y=labels, kind=Tensors):
        return Stream("s", [Task("a", 4, *[kind(x, y)] * 3)])

    x = torch.arange(8.0).view(4, 2)
    digest = data_digest(stream(x))
    assert digest == data_digest(stream(x.clone())) == data_digest(stream(x.mT.contiguous().mT))
    assert len({digest, data_digest(stream(x + 1)), data_digest(stream(x, labels.flip(0)))}) == 3
    files = [(x[i], int(label)) for label in (0, 1) for i in range(4)]
    from_files = [FromDataset(files), FromDataset(files[:-1]), FromDataset([*files[:-1], (x[0], 3)])]
    assert len({data_digest(stream(None, part, lambda _, part: part)) for part in from_files}) == 3
