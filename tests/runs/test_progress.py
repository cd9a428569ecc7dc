"""What a person sees: bars on a terminal, plain lines anywhere else."""

import io
import re

import pytest

from codecl.runs.events import make_event
from codecl.runs.progress import Pace, PlainDisplay, open_display
from codecl.runs.recipe import make_recipe
from codecl.text import duration, size, table

EPOCH = {
    "event": "epoch", "task": 0, "epoch": 1, "of": 10, "loss": 1.23456, "validation_loss": 1.0,
    "validation_accuracy": 61.25, "lr": 0.05, "seconds": 2.0,
}  # fmt: skip
TASK = {
    "event": "task", "task": 1, "name": "b", "accuracy": [90.0, 80.5, None], "bytes": {"memory": 1}, "layers": {},
}  # fmt: skip
RESUME = {"event": "resume", "task": 1, "epoch": 4, "epochs": [3]}
NOTICE = {"event": "notice", "text": "Ho [bold]"}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def plain(*events, name=""):
    out = io.StringIO()
    display = PlainDisplay({name: Pace(3, 10)}, out)
    for event in events:
        display.show(name, make_event(event))
    display.close()
    return out.getvalue()


def live(runs, *events):
    """The terminal in the end, as a person sees it."""
    pytest.importorskip("rich")
    from codecl.runs.live import LiveDisplay

    out = Terminal()
    display = LiveDisplay({name: Pace(3, 10) for name in runs}, out)
    for name, event in events:
        display.show(name, make_event(event))
    display.close()
    written = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    return [line.rstrip() for line in re.split(r"[\r\n]+", written) if line.strip()]


def test_plain_lines_where_there_is_no_terminal():
    text = plain(EPOCH, EPOCH | {"epoch": 2}, TASK)
    assert text.splitlines() == [
        "task 1/3  epoch 1/10  loss 1.2346  validation 61.2 %  lr 0.05  at most 58s left",
        "task 1/3  epoch 2/10  loss 1.2346  validation 61.2 %  lr 0.05  at most 56s left",
        "after task 2/3:  90.0  80.5   mean 85.2",
    ]


def test_notices_and_resumption_have_lines_of_their_own():
    assert plain(RESUME, NOTICE) == "going on with task 2 after epoch 4\nHo [bold]\n"


def test_a_label_stands_before_every_line():
    text = plain(EPOCH, TASK, NOTICE, name="gpm-seed0")
    assert [line.split(" ")[0] for line in text.splitlines()] == ["gpm-seed0"] * 3


def test_tasks_that_are_learned_at_once_are_named_so():
    together = {"together": 3, "task": 2}
    row = {"accuracy": [90.0, 80.0, 70.0]}
    text = plain(RESUME | together | {"epochs": []}, EPOCH | together, TASK | together | row)
    assert text.splitlines() == [
        "going on with all tasks after epoch 4",
        "all 3 tasks  epoch 1/10  loss 1.2346  validation 61.2 %  lr 0.05  at most 18s left",
        "after all 3 tasks:  90.0  80.0  70.0   mean 80.0",
    ]


def test_a_bar_on_a_terminal_with_what_is_learned_the_time_left_and_the_accuracy():
    lines = live([""], ("", EPOCH), ("", TASK), ("", EPOCH | {"task": 2, "epoch": 10}), ("", NOTICE))
    assert "after task 2/3:  90.0  80.5   mean 85.2" in lines
    assert "Ho [bold]" in lines
    assert re.fullmatch(r"task 3/3, epoch 10/10 ━+ +100% at most 0s left ACC 85.2 %", lines[-1])
    assert re.fullmatch(r"task 1/3, epoch 1/10 .* 3% at most 58s left", live([""], ("", EPOCH))[-1])


def test_a_row_for_every_run_on_a_terminal():
    last = TASK | {"task": 2, "accuracy": [90.0, 80.0, 70.0]}
    lines = live(["gpm-seed0", "sgp-seed0"], ("gpm-seed0", EPOCH), ("sgp-seed0", RESUME), ("gpm-seed0", last))
    assert "sgp-seed0 going on with task 2 after epoch 4" in lines
    assert not any("after task" in line for line in lines)
    assert re.fullmatch(r"gpm-seed0 task 1/3, epoch 1/10 ━+ +100% done +ACC 80.0 %", lines[-2])
    assert re.fullmatch(r"sgp-seed0 +━+ +0%", lines[-1])


@pytest.mark.parametrize("there", [True, False])
def test_bars_are_for_terminals_where_rich_is_installed(there, monkeypatch):
    recipes = {"": make_recipe({}, {})}
    assert isinstance(open_display(recipes, io.StringIO()), PlainDisplay)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: there or None)
    display = open_display(recipes, Terminal())
    display.close()
    assert isinstance(display, PlainDisplay) != there


def test_the_time_left_follows_recent_epochs_and_finished_tasks():
    pace = Pace(3, 10)

    def left(**changes):
        return pace.time_left(make_event(EPOCH | changes))

    def see(**changes):
        pace.see(make_event(EPOCH | changes))

    see()
    assert left() == (9 + 20) * 2.0
    for epoch in range(2, 5):
        see(epoch=epoch)
    see(task=1)
    assert left(task=1) == (9 + 4) * 2.0  # the first task needed 4 epochs
    assert pace.fraction_done(make_event(EPOCH | {"task": 1})) == 5 / (5 + 9 + 4)
    for _ in range(10):
        see(task=1, seconds=0.5)
    assert left(task=1) == (9 + 4) * 0.5
    assert left(task=2, epoch=10) == 0


def test_epochs_of_before_a_stop_count():
    pace = Pace(3, 10)
    pace.see(make_event(RESUME))
    pace.see(make_event(EPOCH | {"task": 1, "epoch": 5}))
    assert pace.epochs_left(make_event(EPOCH | {"task": 1, "epoch": 5})) == 5 + 3
    assert pace.fraction_done(make_event(EPOCH | {"task": 1, "epoch": 5})) == 8 / 16


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.4, "59s"), (59.6, "1m00s"), (75, "1m15s"), (3599.7, "1h00m"), (3 * 3600 + 125, "3h02m")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1500, "1.5 kB"),
        (176768, "177 kB"),
        (2.5e6, "2.5 MB"),
        (3e9, "3 GB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (999_600, "1 MB"),
        (999_499_999, "999 MB"),
        (999_600_000, "1 GB"),
        (999.6e9, "1 TB"),
        (5e15, "5000 TB"),
    ],
)
def test_sizes(count, text):
    assert size(int(count)) == text


def test_tables_are_aligned():
    assert table(["method", "ACC"], [["a", "1.00"], ["longer name", "99"]]).splitlines() == [
        "method        ACC",
        "-----------  ----",
        "a            1.00",
        "longer name    99",
    ]
