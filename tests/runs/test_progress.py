"""What a person sees: a line that is rewritten on a terminal, plain lines anywhere else."""

import io

import pytest

from codecl.runs.progress import ShowProgress, duration, size, table

EPOCH = {
    "event": "epoch", "task": 0, "epoch": 1, "of": 10, "loss": 1.23456, "validation_loss": 1.0,
    "validation_accuracy": 61.25, "lr": 0.05, "seconds": 2.0,
}  # fmt: skip
TASK = {"event": "task", "task": 1, "accuracy": [90.0, 80.5, None], "bytes": {"memory": 1}}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(out, *events, **options):
    show = ShowProgress(3, 10, out, **options)
    for event in events:
        show(event)
    show.close()
    return out.getvalue()


def test_plain_lines_where_there_is_no_terminal():
    text = shown(io.StringIO(), EPOCH, EPOCH | {"epoch": 2}, TASK)
    assert "\r" not in text
    assert "\x1b" not in text
    assert text.splitlines() == [
        "task 1/3  epoch 1/10  loss 1.2346  validation 61.2 %  lr 0.05  at most 58s left",
        "task 1/3  epoch 2/10  loss 1.2346  validation 61.2 %  lr 0.05  at most 56s left",
        "after task 2/3:  90.0  80.5   mean 85.2",
    ]


def test_one_line_is_rewritten_on_a_terminal():
    text = shown(Terminal(), EPOCH, EPOCH | {"epoch": 2}, TASK, EPOCH | {"task": 2})
    assert text.count("\n") == 1  # the row of the matrix stays
    assert text.count("\r\x1b[Ktask") == 3
    rows = text.split("\r\x1b[K")
    assert rows[1].startswith("task 1/3  epoch 1/10")
    assert rows[3].startswith("after task 2/3:  90.0  80.5")
    assert rows[-1] == ""  # the last line is cleared when it ends


def test_notices_and_resumption_have_lines_of_their_own():
    text = shown(
        Terminal(), EPOCH, {"event": "resume", "task": 1, "epoch": 4, "epochs": [3]}, {"event": "notice", "text": "Ho"}
    )
    assert text.endswith("\r\x1b[Kgoing on with task 2 after epoch 4\nHo\n")


def test_a_label_stands_before_every_line():
    text = shown(io.StringIO(), EPOCH, TASK, {"event": "notice", "text": "Ho"}, label="gpm-seed0")
    assert [line.split(" ")[0] for line in text.splitlines()] == ["gpm-seed0"] * 3


def test_the_time_left_follows_recent_epochs_and_finished_tasks():
    show = ShowProgress(3, 10, io.StringIO())
    show(EPOCH)
    assert show.time_left(EPOCH) == (9 + 20) * 2.0
    for epoch in range(2, 5):
        show(EPOCH | {"epoch": epoch})
    second = EPOCH | {"task": 1, "epoch": 1}
    show(second)
    assert show.time_left(second) == (9 + 4) * 2.0  # the first task needed 4 epochs
    for _ in range(10):
        show(second | {"seconds": 0.5})
    assert show.time_left(second) == (9 + 4) * 0.5
    assert show.time_left(EPOCH | {"task": 2, "epoch": 10}) == 0


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
