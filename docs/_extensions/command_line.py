"""The directive ``{command} NAME``: the usage, options and examples of a command, as its parser has them."""

import argparse
import textwrap

from docutils import nodes
from docutils.parsers.rst import Directive

from codecl.cli.main import build_parser


def commands():
    """The parser of each command by its name, in the order of ``codecl --help``."""
    (several,) = (action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    return several.choices


class Command(Directive):
    required_arguments = 1

    def run(self):
        parser = commands()[self.arguments[0]]
        usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
        shown = [nodes.paragraph(text=parser.description), literal(wrapped(usage))]
        if options := [action for action in parser._actions if action.dest != "help"]:
            shown.append(table(parser, options))
        if parser.epilog:
            shown.append(literal(textwrap.dedent(parser.epilog.partition("\n")[2])))
        return shown


def table(parser, options):
    """A row for each option: how it is written, and what it is for."""
    formatter = parser._get_formatter()
    group = nodes.tgroup(cols=2)
    group += [nodes.colspec(colwidth=width) for width in (35, 65)]
    head, body = nodes.thead(), nodes.tbody()
    head += row(nodes.paragraph(text="option"), nodes.paragraph(text="what it is for"))
    for action in options:
        written = nodes.paragraph()
        for i, name in enumerate(action.option_strings or [""]):
            value = "" if action.nargs == 0 else formatter._format_args(action, value_name(action))
            written += [nodes.Text(", ")] * (i > 0) + [nodes.literal(text=f"{name} {value}".strip())]
        said = nodes.paragraph(text=formatter._expand_help(action) if action.help else "")
        body += row(written, said)
    group += [head, body]
    return nodes.table("", group, classes=["options"])


def value_name(action):
    return action.metavar or (action.dest.upper() if action.option_strings else action.dest)


def row(*cells):
    return nodes.row("", *(nodes.entry("", cell) for cell in cells))


def literal(text):
    block = nodes.literal_block(text, text)
    block["language"] = "text"
    return block


def wrapped(usage):
    """The usage over several lines, broken between its options."""
    name, _, rest = usage.partition(" [")
    parts = f"[{rest}".replace("] [", "]\0[").split("\0") if rest else []
    lines = [name]
    for part in parts:
        if len(lines[-1]) + len(part) > 85:
            lines.append("   ")
        lines[-1] += f" {part}"
    return "\n".join(lines)


def setup(app):
    app.add_directive("command", Command)
    return {"parallel_read_safe": True}
