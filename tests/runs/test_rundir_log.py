"""A log that is torn, damaged, removed, a link or a pipe: what is good of it is kept, and the rest is told."""

import os

import pytest

from codecl.runs.records import read_run
from tests.runs.directories import assert_same_numbers, go_on
from tests.runs.running import codecl, epochs_of, result_of

pytestmark = pytest.mark.slow


def test_a_torn_line_of_the_log_is_forgotten(stopped, whole):
    with open(stopped / "log.jsonl", "a") as log:
        log.write('{"event": "epo')
    assert len(read_run(stopped).events) == 7
    assert go_on(stopped) == ([], [(1, 2, [3])])
    assert_same_numbers(stopped, whole)


@pytest.mark.parametrize(
    "line", [b"\xff\xfe\n", b'{"event": "epo\n', b"{}\n", b'{"event": "notice", "text": "a", "crc": "0"}\n']
)
def test_a_log_is_cut_at_its_last_good_line(line, stopped, whole):
    log = stopped / "log.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:2], line, *lines[3:]]))
    notices, resumed = go_on(stopped)
    assert resumed == [(1, 2, [3])]
    assert [notice.startswith(f"{log} is damaged: line 3: ") for notice in notices] == [True]
    assert result_of(stopped)["accuracy"] == result_of(whole)["accuracy"]
    assert epochs_of(stopped) == [*epochs_of(whole)[:2], *epochs_of(whole)[5:]]


def test_a_log_that_is_a_link_is_replaced_and_not_written_to(stopped, tmp_path):
    log, thesis = stopped / "log.jsonl", tmp_path / "thesis.txt"
    thesis.write_text("mine\n")
    log.unlink()
    log.symlink_to(thesis)
    notices, _ = go_on(stopped)
    assert "line 1: it is not JSON" in notices[0]
    assert thesis.read_text() == "mine\n"
    assert not log.is_symlink()


def test_a_pipe_in_place_of_the_log_is_refused_at_once(stopped, capsys):
    (stopped / "log.jsonl").unlink()
    os.mkfifo(stopped / "log.jsonl")
    code, _, err = codecl(capsys, "run", "--resume", stopped, "--quiet")
    assert (code, err.count("\n")) == (2, 1)
    assert "not a regular file" in err


def test_a_log_that_was_removed_is_told(stopped, whole):
    (stopped / "log.jsonl").unlink()
    notices, resumed = go_on(stopped)
    assert resumed == [(1, 2, [3])]
    assert notices == [f"{stopped / 'log.jsonl'} has 0 lines of the 6 before the checkpoint."]
    assert result_of(stopped)["accuracy"] == result_of(whole)["accuracy"]
