"""All tasks at once: one part of several, one row in the matrix, and everything that reads it."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codecl.methods.multitask import Multitask
from codecl.report import reproduction
from codecl.report.comparison import compare_methods
from codecl.report.experiments import find_experiments
from codecl.report.records import Run
from codecl.runs.recipe import make_recipe
from codecl.runs.records import RunRecord
from codecl.runs.run import run
from codecl.runs.rundir import RunDirectory
from codecl.training.check import PLAN, network, small_stream
from codecl.training.engine import Trainer
from codecl.training.loader import BatchLoader
from codecl.training.stream import JointPart, Tensors
from tests.runs.running import make_result

SIZES = (3, 1, 5)


def parts():
    """Inputs that say where they are from: task and place."""
    made = []
    for t, size in enumerate(SIZES):
        x = torch.stack([torch.full((size,), t), torch.arange(size)], 1)
        made.append(Tensors(x, 10 * t + torch.arange(size), prepare=lambda x: x.float() + 0.5))
    return made


@given(st.lists(st.integers(0, sum(SIZES) - 1), min_size=1, max_size=12))
def test_a_batch_has_its_inputs_labels_and_tasks_in_the_order_asked_for(indices):
    places = [(t, i) for t, size in enumerate(SIZES) for i in range(size)]
    joint = JointPart(parts())
    assert len(joint) == len(places)
    x, y, tasks = joint.take(torch.tensor(indices))
    assert (x - 0.5).tolist() == [list(places[i]) for i in indices]
    assert y.tolist() == [10 * t + i for t, i in (places[i] for i in indices)]
    assert tasks.tolist() == [places[i][0] for i in indices]


def test_an_order_over_all_takes_every_input_once():
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    seen = [label for _, y, _ in BatchLoader(JointPart(parts()), 4, order=order) for label in y.tolist()]
    assert sorted(seen) == [0, 1, 2, 10, 20, 21, 22, 23, 24]


def test_events_say_that_all_tasks_are_learned_at_once():
    events = []
    trainer = Trainer(Multitask(network()), small_stream(3), PLAN, None, (events.append,))
    trainer.run()
    assert [e["event"] for e in events] == ["notice", *["epoch"] * PLAN.epochs, "task"]
    assert events[0]["text"] == (
        "multitask sees the data of all tasks at once: an upper bound, not continual learning."
    )
    assert all(e["together"] == 3 and e["task"] == 2 for e in events[1:])
    assert events[-1]["accuracy"] == trainer.progress.accuracy[0]
    assert None not in events[-1]["accuracy"]


# On the command's side.

JOINT, GPM = make_result("multitask", 0, [[80.0, 90.0]]), make_result("gpm", 0, [[70.0, None], [60.0, 80.0]])


def test_a_run_of_one_row_has_neither_backward_nor_forward_transfer():
    lines = compare_methods([GPM, JOINT]).splitlines()
    assert "FWT % over gpm" in lines[0]
    assert next(line for line in lines if line.startswith("multitask")).split()[1:4] == ["85.00", "–", "–"]
    assert next(line for line in lines if line.startswith("gpm")).split()[1:4] == ["70.00", "-10.00", "0.00"]
    assert "FWT" not in compare_methods([GPM, JOINT], baseline="multitask")


def test_the_reproduction_table_takes_one_row():
    joint = Run("multitask-seed0", RunRecord(Path("multitask-seed0"), result=JOINT))
    row = next(line for line in reproduction.table(find_experiments([joint])).splitlines() if "multitask" in line)
    assert [cell.strip() for cell in row.split("|")][7:9] == ["85.00", "–"]


class Killed(Exception):
    pass


@pytest.mark.parametrize("after", [None, 1, 2])
def test_a_run_directory_holds_one_row_also_if_the_run_was_stopped(tmp_path, after):
    recipe = make_recipe(
        {"method": "codecl.methods.multitask:Multitask", "tasks": 2}, {"batch_size": 400, "lr": 0.2}, epochs=2
    )
    whole = run(recipe, RunDirectory(tmp_path / "whole"))
    assert len(whole.accuracy) == 1
    assert len(whole.accuracy[0]) == 2
    assert whole.bwt is None
    assert whole.acc == pytest.approx(sum(whole.accuracy[0]) / 2)
    assert whole.epochs == [2]

    def stop(event):
        if event.kind == "epoch" and event.epoch == after:
            raise Killed

    if after is not None:
        with pytest.raises(Killed):
            run(recipe, RunDirectory(tmp_path / "cut"), (stop,))
        again = run(recipe, RunDirectory(tmp_path / "cut"))
        assert again.accuracy == whole.accuracy
    log = (tmp_path / ("whole" if after is None else "cut") / "log.jsonl").read_text().splitlines()
    assert "upper bound, not continual learning" in json.loads(log[0])["text"]
    assert [json.loads(line)["epoch"] for line in log if '"epoch"' in line and '"loss"' in line] == [1, 2]
