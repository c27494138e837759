"""docs/cli.md says all there is to the command line, and nothing else."""

from __future__ import annotations

import re

import click
import pytest

from dataloader.app.cli.command import cli
from dataloader.app.cli.exit_codes import ExitCode
from tests.support.processes import ROOT

PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
SECTIONS = dict(part.partition("\n")[::2] for part in PAGE.split("\n## ")[1:])
OF_EACH = {"--help"}
OF_A_SERVICE = {"--url", "--key-file", "--timeout", "--retry-timeout", "--json"}


def options(command: click.Command) -> set[str]:
    return {
        name
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for name in parameter.opts
        if name.startswith("--")
    }


def documented(section: str) -> set[str]:
    first = re.findall(r"^\| (`--[^|]+) \|", section, re.MULTILINE)
    return {name for cell in first for name in re.findall(r"`(--[a-z-]+)`", cell)}


@pytest.mark.parametrize("name", cli.list_commands(click.Context(cli)))
def test_every_command_is_described_with_exactly_its_options(name):
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    if isinstance(command, click.Group):  # its commands stand in its section, with what each needs
        within = set().union(*(options(it) for it in command.commands.values()))
        assert documented(SECTIONS[name]) <= within
        assert all(f"{name} {it}" in SECTIONS[name] for it in command.commands)
        return
    has = options(command)
    shared = OF_A_SERVICE if has >= OF_A_SERVICE else set()

    assert documented(SECTIONS[name]) | shared == has - OF_EACH


def test_the_shared_options_are_described_once():
    (section,) = (text for title, text in SECTIONS.items() if title.startswith("Options of client commands"))

    assert documented(section) == OF_A_SERVICE


def test_the_options_of_the_command_itself_are_described():
    assert all(f"{name}`" in PAGE for name in options(cli))


def test_the_page_gives_every_exit_code_a_meaning():
    meanings = dict(re.findall(r"^\| (\d+) \| (.+) \|$", PAGE, re.MULTILINE))

    assert meanings.keys() == {str(code.value) for code in ExitCode}
