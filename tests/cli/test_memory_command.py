"""``codecl memory`` prints the paper's table with the bytes of the formulas, and refuses layers that cannot be."""

import re

import pytest

from codecl.cli.main import main


def test_the_memory_table_of_the_paper_for_one_layer(capsys):
    arguments = "--inputs 100 --outputs 50 --tasks 4 --directions 10 --free 5"
    assert main(["memory", *arguments.split()]) == 0
    printed = capsys.readouterr().out
    cells = {name: cells for name, *cells in (re.split(r" {2,}", line.strip()) for line in printed.splitlines()[3:-1])}
    assert cells["gpm"] == ["O(N²)", "8Nr", "32 kB"]  # 8 · 100 · 40
    assert cells["trgp"] == ["O(N² + TNB + TB²)", "8(Nr + TB) + w(2T − 3)B²", "34.3 kB"]  # 32,000 + 320 + 4 · 5 · 100
    assert cells["cuber"][0] == "O(N² + TN² + TNB + TB²)"
    assert cells["cuber"][2] == "114 kB"  # and 5 flags and 4 · 4 · 100 · 50
    assert cells["code-cl"] == ["O(N² + TNK + TK²)", "8Nr + w(T − 1)(NK + K²)", "38.3 kB"]  # 32,000 + 12 · 525
    assert cells["code-cl (own)"] == ["–", "8Nr + w(T − 1)(N + M)K", "41 kB"]  # 32,000 + 12 · 150 · 5
    assert "r = 40 directions" in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--tasks 0", "T must be 1 or more; got 0."),
        ("--inputs 10 --directions 11 --free 1", "B counts directions of N = 10 inputs; got 11."),
        ("--inputs 100 --free -1", "K counts directions of N = 100 inputs; got -1."),
        ("--outputs many", "invalid int value"),
    ],
)
def test_a_layer_that_cannot_be_is_refused_in_one_line(arguments, words, capsys):
    try:
        code = main(["memory", *arguments.split()])
    except SystemExit as end:
        code = end.code
    assert code == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
