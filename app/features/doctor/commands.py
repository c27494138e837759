"""Command doctor: check the database and the queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from dataloader.app.cli import text
from dataloader.app.cli.exit_codes import ExitCode
from dataloader.app.cli.output import is_json
from dataloader.app.cli.parsing import json_option, option
from dataloader.app.cli.service import load_settings
from dataloader.app.wording import format_count

if TYPE_CHECKING:
    from dataloader.app.acts.findings import Finding

_MARKS = {"ok": ("ok", "green"), "info": ("note", "cyan"), "warning": ("warning", "yellow"), "error": ("ERROR", "red")}
_FIELDS = ("check", "severity", "message", "remedy", "facts")


@click.command(short_help="Check the database and the queue.")
@option("--all", "everything", is_flag=True, help="Show passed checks too.")
@json_option
def doctor(*, everything: bool) -> int:
    """Check the database, its server, the tables and the queue, with the service's own account.

    Each finding has its remedy. Nothing is changed. The exit code is 1 after an error, 5 after warnings only.
    """
    from dataloader.app.runtime import commands  # noqa: PLC0415 - the driver is not for commands that send requests

    findings = sorted(commands.run_doctor(load_settings()), key=lambda finding: -finding.severity)
    worst = findings[0].severity.word if findings else "ok"
    items = [{name: getattr(f, name) for name in _FIELDS} | {"severity": f.severity.word} for f in findings]
    payload, lines = {"worst": worst, "findings": items}, _finding_lines(findings, everything=everything)
    click.echo(text.json_text(payload) if is_json() else "\n".join(lines))  # the lines have colours
    if any(finding.check == "database" for finding in findings):
        return ExitCode.UNAVAILABLE
    return {"error": ExitCode.FAILURE, "warning": ExitCode.WARNINGS}.get(worst, ExitCode.OK)


def _finding_lines(findings: Sequence[Finding], *, everything: bool) -> Iterator[str]:
    shown = [finding for finding in findings if everything or finding.severity.word != "ok"]
    for finding in shown:
        mark, colour = _MARKS[finding.severity.word]
        yield f"{click.style(f'{mark:8}', fg=colour, bold=mark != 'ok')}{finding.message}"
        if finding.remedy:
            yield f"{'':8}{click.style('→ ' + finding.remedy, dim=True)}"
    passed = len(findings) - len(shown)
    summary = f"{format_count(passed, 'check')} found nothing wrong; --all shows {'it' if passed == 1 else 'them'}."
    yield summary if passed else "That was all."


COMMANDS = {"Run the service": (doctor,)}
