"""Command search-logs: the lines of all jobs' logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from dataloader.app.cli import text
from dataloader.app.cli.exit_codes import ExitCode
from dataloader.app.cli.output import is_json
from dataloader.app.cli.parsing import option
from dataloader.app.cli.remote import RemoteService, remote_command
from dataloader.app.wording import format_count

_MAX_PAGE_LINES = 500


@remote_command("search-logs", operation="search_logs", omit="before limit", short_help="Search the logs of all jobs.")
@option("--limit", type=click.IntRange(1), default=100, show_default=True, help="The maximum number of lines.")
def search_logs(service: RemoteService, *, limit: int, **query: Any) -> int:
    """Search the logs of all jobs, newest lines first, by default those of the last day.

    \b
      dataloader search-logs --text "timed out" --level WARNING
      dataloader search-logs --task load.sales --since 2026-11-21

    The search continues until it has found as many lines as --limit or has searched all; Ctrl-C ends it. With --json
    each line is a JSON document of its own.
    """
    searched_to, count = None, 0
    try:
        for page in _pages(service, limit, query):
            for line in page["lines"]:
                click.echo(text.json_line(line) if is_json() else _shown(line))
            count, searched_to = count + len(page["lines"]), page["scanned_to"]
    except KeyboardInterrupt:
        if searched_to is not None:
            click.echo(f"Lines before {text.format_time(searched_to)} were not searched.", err=True)
        return ExitCode.INTERRUPTED
    if not is_json():
        click.echo(f"{format_count(count, 'line')}.", err=True)
    return ExitCode.OK


def _pages(service: RemoteService, limit: int, query: dict[str, Any]) -> Iterator[text.Payload]:
    before = None
    while limit > 0:
        page = service.send("search_logs", **query, before=before, limit=min(limit, _MAX_PAGE_LINES))
        yield page
        limit, before = limit - len(page["lines"]), page["next"]
        if before is None:
            return


def _shown(line: text.Payload) -> str:
    task = text.one_line(line["task"] or "deleted")
    head = f"{text.format_time(line['ts'])}  {line['job_id']}  {task}  {text.one_line(line['level']):<8}"
    return f"{head} {text.printable(line['line'])}".rstrip()


COMMANDS = {"Watch": (search_logs,)}
