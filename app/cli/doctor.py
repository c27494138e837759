"""doctor: what is wrong with the database, the schema, the server and the queue, and what would mend it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from app.cli import text
from app.cli.exits import Exit
from app.cli.service import json_option
from app.wording import counted

if TYPE_CHECKING:
    from app.doctor.findings import Finding

_MARKS = {"ok": ("ok", "green"), "info": ("note", "cyan"), "warning": ("warning", "yellow"), "error": ("ERROR", "red")}


@click.command(short_help="Examine the database and the queue.")
@click.option("--all", "everything", is_flag=True, help="Also what is in order.")
@json_option
def doctor(*, everything: bool, as_json: bool) -> None:
    """Examine the database, its server, the tables and the queue, as the service's own account sees them.

    Each finding has its remedy. Nothing is changed. Ends with 1 if something is wrong, with 5 if something is only
    doubtful.
    """
    from app import wiring  # noqa: PLC0415 - pydantic and the driver are not for client commands
    from app.config import Settings  # noqa: PLC0415 - likewise

    findings = sorted(wiring.examine(Settings.load()), key=lambda finding: -finding.severity)
    worst = findings[0].severity.word if findings else "ok"
    if as_json:
        click.echo(text.json_text({"worst": worst, "findings": [_said(finding) for finding in findings]}))
    else:
        shown = [finding for finding in findings if everything or finding.severity.word != "ok"]
        for finding in shown:
            _show(finding)
        fine = len(findings) - len(shown)
        click.echo(
            f"{counted(fine, 'check')} found nothing wrong; --all shows {'it' if fine == 1 else 'them'}."
            if fine
            else "That was all."
        )
    if any(finding.check == "database" for finding in findings):
        click.get_current_context().exit(Exit.UNAVAILABLE)
    click.get_current_context().exit({"error": Exit.NOT_DONE, "warning": Exit.DOUBTFUL}.get(worst, Exit.OK))


def _said(finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.check,
        "severity": finding.severity.word,
        "told": finding.told,
        "remedy": finding.remedy,
        "facts": dict(finding.facts),
    }


def _show(finding: Finding) -> None:
    mark, colour = _MARKS[finding.severity.word]
    click.echo(f"{click.style(f'{mark:8}', fg=colour, bold=mark != 'ok')}{finding.told}")
    if finding.remedy:
        click.echo(f"{'':8}{click.style('→ ' + finding.remedy, dim=True)}")
