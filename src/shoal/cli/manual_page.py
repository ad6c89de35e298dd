"""The manual page shoal(1), written from the help of every command and the table of exit codes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc

import click

from shoal.cli.exit_codes import MEANINGS
from shoal.version import __version__

UNFILLED = "\b"
"""What begins a paragraph of help whose lines stay as they are."""


def manual_page(shoal: click.Group) -> str:
    """The page as roff with the macros of man(7); it depends on nothing but the commands, the codes and the version."""
    ctx = click.Context(shoal, info_name="shoal", **shoal.context_settings)
    summary, *more = _paragraphs(shoal)
    lines = [
        '.\\" Written by `shoal help --man`.',
        f'.TH SHOAL 1 "" "shoal {__version__}" "User Commands"',
        ".SH NAME",
        f"shoal \\- {_text(summary[0].lower() + summary[1:].rstrip('.'))}",
        ".SH SYNOPSIS",
        ".B shoal",
        ".I COMMAND",
        "[OPTIONS] [ARGUMENTS]",
        ".SH DESCRIPTION",
        *_prose(more),
        ".SH OPTIONS",
        *_options(shoal, ctx),
        ".SH COMMANDS",
    ]
    for name in shoal.list_commands(ctx):
        command = shoal.get_command(ctx, name)
        assert command is not None
        lines += _command(command, click.Context(command, parent=ctx, info_name=name))
    lines.append(".SH EXIT STATUS")
    for code, meaning in MEANINGS.items():
        lines += [".TP", f".B {code}", _text(meaning)]
    return "\n".join(lines) + "\n"


def _command(command: click.Command, ctx: click.Context) -> Iterator[str]:
    """The section of a command, and those of the commands inside it."""
    usage = " ".join(command.collect_usage_pieces(ctx))
    yield f".SS {_text(ctx.command_path)} {_text(usage)}"
    yield from _prose(_paragraphs(command))
    yield from _options(command, ctx)
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            assert inner is not None
            yield from _command(inner, click.Context(inner, parent=ctx, info_name=name))


def _options(command: click.Command, ctx: click.Context) -> Iterator[str]:
    """Each option with what it means; `--help` is every command's, and told once."""
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        is_common = ctx.parent is not None and "--help" in param.opts
        if record is None or is_common or isinstance(param, click.Argument):
            continue
        words, meaning = record
        yield ".TP"
        yield f".B {_text(words)}"
        yield _text(_one_line(meaning)) or "\\&"


def _paragraphs(command: click.Command) -> list[str]:
    """The paragraphs of a command's help."""
    text = cleandoc((command.help or "").partition("\f")[0])
    return re.split(r"\n\s*\n", text)


def _prose(paragraphs: list[str]) -> Iterator[str]:
    for number, paragraph in enumerate(paragraphs):
        if number:
            yield ".PP"
        if not paragraph.startswith(UNFILLED):
            yield _text(_one_line(paragraph))
            continue
        yield ".EX"
        yield from (_text(line) for line in paragraph.removeprefix(UNFILLED).strip("\n").splitlines())
        yield ".EE"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _text(text: str) -> str:
    """Text of which nothing means anything to roff: the minus sign stays one, so that an option can be copied."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"`([^`]+)`", r"\\fB\1\\fR", text)
    return f"\\&{text}" if text.startswith((".", "'")) else text
