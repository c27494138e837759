"""Command doctor: checks of the database, the schema, the server and the queue, each finding with its remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from app.cli import text
from app.cli.exit_codes import ExitCode
from app.cli.service_options import json_option
from app.wording import format_count

if TYPE_CHECKING:
    from app.doctor.findings import Finding

_MARKS = {"ok": ("ok", "green"), "info": ("note", "cyan"), "warning": ("warning", "yellow"), "error": ("ERROR", "red")}


@click.command(short_help="Check the database and the queue.")
@click.option("--all", "everything", is_flag=True, help="Show passed checks too.")
@json_option
def doctor(*, everything: bool, as_json: bool) -> None:
    """Check the database, its server, the tables and the queue, with the service's own account.

    Each finding has its remedy. Nothing is changed. The exit code is 1 after an error, 5 after warnings only.
    """
    from app.config import load_settings  # noqa: PLC0415 - likewise
    from app.runtime import commands  # noqa: PLC0415 - pydantic and the driver are not for client commands

    findings = sorted(commands.run_doctor(load_settings()), key=lambda finding: -finding.severity)
    worst = findings[0].severity.word if findings else "ok"
    if as_json:
        click.echo(text.json_text({"worst": worst, "findings": [_to_dict(finding) for finding in findings]}))
    else:
        shown = [finding for finding in findings if everything or finding.severity.word != "ok"]
        for finding in shown:
            _print_finding(finding)
        fine = len(findings) - len(shown)
        click.echo(
            f"{format_count(fine, 'check')} found nothing wrong; --all shows {'it' if fine == 1 else 'them'}."
            if fine
            else "That was all."
        )
    if any(finding.check == "database" for finding in findings):
        click.get_current_context().exit(ExitCode.UNAVAILABLE)
    click.get_current_context().exit({"error": ExitCode.FAILURE, "warning": ExitCode.WARNINGS}.get(worst, ExitCode.OK))


def _to_dict(finding: Finding) -> dict[str, Any]:
    """The finding as JSON; version 0.2.0 has its message as `told`, which the next release will not."""
    return {**vars(finding), "severity": finding.severity.word, "told": finding.message}


def _print_finding(finding: Finding) -> None:
    mark, colour = _MARKS[finding.severity.word]
    click.echo(f"{click.style(f'{mark:8}', fg=colour, bold=mark != 'ok')}{finding.message}")
    if finding.remedy:
        click.echo(f"{'':8}{click.style('→ ' + finding.remedy, dim=True)}")
