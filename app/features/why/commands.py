"""Command why: why a job waits, or a task or queue does not run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from uuid import UUID

import click

from dataloader.app.cli import text
from dataloader.app.cli.output import print_payload
from dataloader.app.cli.parsing import PartOfId, parse_job_id
from dataloader.app.cli.remote import RemoteService, remote_command
from dataloader.app.wording import format_duration
from dataloader.errors import NotFound


@remote_command(short_help="Explain why a job waits, or a task or queue does not run.")
@click.argument("subject", metavar="JOB_ID|TASK|QUEUE")
def why(service: RemoteService, *, subject: str) -> None:
    """Explain why a job waits, runs for so long, or ended as it did; what keeps jobs of a task from being made or from
    starting; or what keeps those of a queue from starting.

    A name that both a task and a queue have gets the reasons of both.
    """
    job_id = parse_job_id(subject)
    if isinstance(job_id, PartOfId):  # or the name of a task or queue that looks like one
        found = service.find_jobs(job_id)
        job_id = UUID(found[0]["job_id"]) if len(found) == 1 else None
    if job_id is None:
        _explain_name(service, subject)
    else:
        service.perform("explain_job", _reason_lines, job_id=job_id)


def _reason_lines(payload: text.Payload) -> Iterator[str]:
    yield from (reason["message"] for reason in payload["reasons"])
    if payload["position"] is not None:
        yield f"Position in queue: {'' if payload['position_exact'] else 'beyond '}{payload['position']}."
    if (estimate := payload["estimate"]) is not None:
        yield f"It may start in {format_duration(estimate['start_in_sec'])}: {estimate['basis']}."


def _explain_name(service: RemoteService, name: str) -> None:
    found = {}
    with suppress(NotFound):
        found["queue"] = service.send("explain_queue", queue=name)
    task = service.send("explain_task", task=name)
    is_queue_only = "queue" in found and [reason["code"] for reason in task["reasons"]] == ["task_unknown"]
    found = found if is_queue_only else {"task": task, **found}
    lines = []
    for kind, part in found.items():
        no_reason = f"Nothing holds up the {kind} {name}. `dataloader why JOB_ID` explains one job that waits."
        lines += [reason["message"] for reason in part["reasons"]] or [no_reason]
    reasons = [reason for part in found.values() for reason in part["reasons"]]
    merged = {field: value for part in reversed(found.values()) for field, value in part.items()}
    print_payload({**merged, "reasons": reasons}, *dict.fromkeys(lines))


COMMANDS = {"Jobs": (why,)}
