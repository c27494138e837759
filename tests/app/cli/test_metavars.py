"""The parser, walked: every option of every command says what it takes and what it does."""

from __future__ import annotations

import re

import click
import pytest

from app.cli.command import cli, iter_options

OPTIONS = [(" ".join((*path, option.opts[-1])), option) for path, option in iter_options(cli) if not option.hidden]
# What click makes of a type's name or of a list of formats when an option names no value.
UNNAMED = re.compile(r"PARSED|RANGE|^(TEXT|INTEGER|FLOAT|UUID|FILENAME)$|%")


@pytest.mark.parametrize(("name", "option"), OPTIONS, ids=[name for name, _ in OPTIONS])
def test_option_has_help_and_metavar(name, option):
    assert option.help, name
    assert option.help[0].isupper() or option.help[0] in "`'", f"{name}: {option.help}"
    if not option.is_flag and option.opts[-1] not in {"--text", "--note", "--description"}:
        shown = option.make_metavar(click.Context(cli))
        assert not UNNAMED.search(shown), f"{name} {shown}: name its value in app/cli/command.py"


def test_help_of_jobs_names_values(run):
    shown = run("jobs", "--help").stdout

    assert "--created-from TIME" in shown
    assert "--limit COUNT" in shown
    assert "PARSED" not in shown
