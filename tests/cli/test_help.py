"""Every command has help, whose examples are commands; and the version."""

import pytest

import codecl as package
from codecl.cli import main as cli
from tests.runs.running import codecl


@pytest.mark.parametrize(
    "command", [[], ["run"], ["compare"], ["sweep"], ["inspect"], ["methods"], ["benchmarks"]], ids=str
)
def test_every_command_has_help(command, capsys):
    code, out, err = codecl(capsys, *command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith("usage: codecl")
    if command in (["run"], ["compare"], ["sweep"], ["inspect"]):
        examples = out[out.index("examples:") :].splitlines()[1:]
        assert len(examples) >= 3
        assert all(line.startswith(f"  codecl {command[0]}") for line in examples)


def test_the_examples_of_the_help_are_commands_that_parse(capsys):
    for command in ("run", "compare", "sweep", "inspect"):
        _, out, _ = codecl(capsys, command, "--help")
        for line in out[out.index("examples:") :].splitlines()[1:]:
            words = line.split("   ")[0].split(">")[0].split()[1:]
            cli.build_parser().parse_args(words)


def test_the_version(capsys):
    assert codecl(capsys, "--version") == (0, f"codecl {package.__version__}\n", "")
