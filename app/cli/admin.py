"""Commands of operators: watch, bulk, queues, queue, workers, scaling, task-numbers, audit."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any
from uuid import UUID

import click

from dataloader.app.cli import text
from dataloader.app.cli.exit_codes import ExitCode
from dataloader.app.cli.parsing import (
    DURATION,
    NOT_NEGATIVE,
    OBJECT,
    POSITIVE,
    TIME,
    RenamedOption,
    filter_options,
    limit_option,
    without_none,
)
from dataloader.app.cli.service_options import RemoteService, create_option, remote_command
from dataloader.app.cli.tables import Table
from dataloader.app.queue.labels import format_labels
from dataloader.app.wording import format_count, format_duration

_WAIT_FOR_END_SEC = 3.0  # of a bulk cancel, which takes one as a rule
_POLL_INTERVAL_SEC = 0.1

_BULK_OPERATIONS = Table(
    "operation=bulk_id, action, state, jobs, created=created_at",
    {"jobs": lambda operation: f"{operation['changed']} of {operation['expected']}"},
    uncut="operation, action, state, jobs, created",
    empty_message="No bulk operations.",
)
_QUEUES = Table(
    "queue, state, ready, running, oldest, scheduled, blocked, limited, waiting, workers, done/h, failed/h, p95",
    {
        "ready": lambda queue: f"{queue['ready']}{'' if queue['ready_exact'] else '+'}",
        "oldest": lambda queue: format_duration(queue["oldest_ready_sec"]),
        "done/h": lambda queue: queue["last_hour"]["succeeded"],
        "failed/h": lambda queue: queue["last_hour"]["failed"] + queue["last_hour"]["lost"],
        "p95": lambda queue: format_duration(queue["last_hour"]["run_time"]["p95"]),
    },
    uncut="queue, state, ready, running",
    empty_message="No queues.",
)


_WORKERS = Table(
    "worker=name, id=worker_id, state, busy, memory, version, listener, queues, labels",
    {
        "state": lambda worker: "gone" if not worker["alive"] else "draining" if worker["draining"] else "alive",
        "busy": lambda worker: f"{worker['busy']}/{worker['threads']}",
        "memory": lambda worker: worker["rss_bytes"] and f"{worker['rss_bytes'] / 2**20:.0f} MB",
        "queues": lambda worker: ", ".join(worker["queues"]),
        "labels": lambda worker: format_labels(worker["labels"]),
    },
    uncut="worker, id, state, busy",
    empty_message="No workers.",
)
_SCALING = Table(
    "queue, wanted=wanted_threads, busy=busy_threads, idle=idle_threads, ready, oldest, p95, due=due_soon, draining",
    {
        "oldest": lambda queue: format_duration(queue["oldest_ready_sec"]),
        "p95": lambda queue: format_duration(queue["wait_p95_sec"]),
    },
    uncut="queue, wanted, busy, idle",
    empty_message="No queues.",
)
_OUTCOME_LETTERS = {"succeeded": ".", "failed": "F", "lost": "L", "canceled": "c", "retried": "r"}
_TASK_COUNTS = "recent"  # the counts of a task's jobs in the period
_TASKS = Table(
    "task=name, succeeded, failed, failure_rate, p50, p95, last",
    {
        "succeeded": lambda task: task[_TASK_COUNTS]["succeeded"],
        "failed": lambda task: task[_TASK_COUNTS]["failed"] + task[_TASK_COUNTS]["lost"],
        "failure_rate": lambda task: None if (rate := task[_TASK_COUNTS]["failure_rate"]) is None else f"{rate:.1%}",
        "p50": lambda task: format_duration(task[_TASK_COUNTS]["run_time"]["p50"]),
        "p95": lambda task: format_duration(task[_TASK_COUNTS]["run_time"]["p95"]),
        "last": lambda task: "".join(_OUTCOME_LETTERS.get(run["outcome"], "?") for run in task["last_runs"]),
    },
    uncut="task",
    empty_message="No job has run yet.",
)


def _format_changes(line: text.Payload) -> str:
    """`priority 100 → 5`; the fields alone of a resource that was created or deleted."""
    before, after = (
        value if value is None or isinstance(value, dict) else {"value": value}
        for value in (line["before"], line["after"])
    )
    if line.get("count", 1) > 1:
        return f"{line['count']} triggers since {text.format_time(line['first_at'])}"

    def shown(value: Any) -> str:
        return "null" if value is None else text.format_value(value)

    if before is None or after is None:
        return ", ".join(f"{name} {shown(value)}" for name, value in (after or before or {}).items())
    return ", ".join(f"{name} {shown(before.get(name))} → {shown(value)}" for name, value in after.items())


AUDIT_LOG = Table(
    "line=audit_id, time=at, actor, action, resource, changes, from, request=request_id",
    {
        "resource": lambda line: f"{line['subject']} {line['subject_id'] or ''}",
        "changes": _format_changes,
        "from": lambda line: f"{line['address'] or ''} ({line['via']})",
    },
    uncut="line, time",
    empty_message="No actions match.",
)


@remote_command(short_help="Follow the events of all jobs.")
@click.option("--queue", help="Only events of jobs in this queue.")
@click.option("--kind", help="Only these kinds of events, separated by commas.")
def watch(service: RemoteService, *, queue: str | None, kind: str | None) -> None:
    """Follow the events of all jobs until Ctrl-C. With --json each event is a JSON document of its own."""
    try:
        for event in service.client.stream(queue=queue, kind=kind):
            if service.as_json:
                click.echo(text.json_line(event))
                continue
            reason = event["payload"].get("error") or event["payload"].get("reason") or ""
            head = f"{text.format_time(event['ts'])}  {event['kind']:<16} {event['job_id']}"
            click.echo(f"{head}  {text.one_line(event['queue'])}  {text.one_line(reason)}".rstrip())
    except KeyboardInterrupt:
        click.get_current_context().exit(ExitCode.INTERRUPTED)


@remote_command(short_help="Change all jobs that match a filter.")
@click.argument("action", type=click.Choice(["cancel", "retry", "redrive", "delete", "reprioritise", "list", "stop"]))
@click.argument("bulk_id", type=click.UUID, required=False)
@filter_options
@click.option("--priority", type=NOT_NEGATIVE, help="The new priority, for reprioritise.")
@click.option("--per-minute", type=POSITIVE, help="How many jobs a minute to retry at most, for redrive.")
@click.option("--args-patch", type=OBJECT, help="A JSON object to merge into the args of each job, for redrive.")
@click.option("--max-jobs", type=POSITIVE, help="How many jobs to retry at most, for redrive.")
@click.option("--all", "is_all", is_flag=True, help="All jobs, without a filter.")
@click.option("--expected", type=NOT_NEGATIVE, help="About how many jobs match; counted if not given.")
@click.option("--dry-run", is_flag=True, help="Only count the jobs.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def bulk(service: RemoteService, *, action: str, bulk_id: UUID | None, **options: Any) -> None:
    """Cancel, retry, delete or reprioritise all jobs that match a filter. `bulk list` shows such operations and their
    progress, `bulk stop BULK_ID` ends one.

    `bulk redrive` retries at a rate, oldest first, and stops when the circuit breaker of a job's task is open.

    \b
      dataloader bulk redrive --per-minute 60 --status failed,lost --fingerprint 'KeyError sales.py:load'

    It needs a filter or --all. Without --expected the jobs are counted, and the command asks for confirmation, unless
    --yes is given. Nothing is done if by then more than twice as many and a hundred more match; of delete, if any more
    match.
    """
    if action == "list":
        service.print_list(service.get("/api/v1/bulk"), "operations", _BULK_OPERATIONS)
    elif action == "stop":
        if bulk_id is None:
            raise click.UsageError("name the operation: dataloader bulk stop BULK_ID")
        stopped = service.post(f"/api/v1/bulk/{bulk_id}/cancel", repeatable=True)
        changed = format_count(stopped["changed"], "job")
        service.print_payload(stopped, f"{stopped['action']} is {stopped['state']}: {changed} changed.")
    else:
        _start_bulk(service, action, **options)


def _start_bulk(
    service: RemoteService,
    action: str,
    *,
    priority: int | None,
    per_minute: int | None,
    args_patch: dict[str, Any] | None,
    max_jobs: int | None,
    is_all: bool,
    expected: int | None,
    dry_run: bool,
    yes: bool,
    **options: Any,
) -> None:
    if action == "redrive" and per_minute is None and not dry_run:
        raise click.UsageError("redrive needs --per-minute")
    job_filter = without_none(options)
    if bool(job_filter) == is_all:
        problem = (
            "give a filter or --all, not both" if is_all else "give a filter, such as --task, or --all for all jobs"
        )
        raise click.UsageError(problem)
    body: dict[str, Any] = {"action": action, "filter": job_filter}
    if dry_run or expected is None:
        count = service.post("/api/v1/bulk/count", body, repeatable=True)
        jobs = f"{'' if count['exact'] else 'about '}{format_count(count['jobs'], 'job')}"
        if dry_run:
            service.print_payload(count, f"{jobs} would be changed; none was.")
            return
        bound = "" if max_jobs is None else f"at most {max_jobs} of "
        if not yes:
            click.confirm(f"{action} {bound}{jobs}?", abort=True, err=True)
        expected = count["jobs"]
    body |= without_none({"priority": priority, "per_minute": per_minute, "args_patch": args_patch, "max": max_jobs})
    operation = service.post("/api/v1/bulk", {**body, "expected": expected})
    if action == "cancel":
        operation = _wait_for_end(service, operation)
    if operation["finished_at"] is None:
        progress = "`dataloader bulk list` shows its progress."
    else:
        progress = f"{format_count(operation['matched'], 'job')} matched, {operation['changed']} changed."
    service.print_payload(operation, f"{operation['bulk_id']} is {operation['state']}; {progress}")


def _wait_for_end(service: RemoteService, operation: text.Payload) -> text.Payload:
    """Return the operation once it has ended, or as it is after some seconds."""
    deadline = time.monotonic() + _WAIT_FOR_END_SEC
    while operation["finished_at"] is None and time.monotonic() < deadline:
        time.sleep(_POLL_INTERVAL_SEC)
        operation = service.get(f"/api/v1/bulk/{operation['bulk_id']}")
    return operation


@remote_command(short_help="List the queues.")
def queues(service: RemoteService) -> None:
    """List the queues: their jobs by state, how long the oldest ready job waits, and the last hour's outcomes."""
    service.print_list({"queues": service.client.queues()}, "queues", _QUEUES)


@remote_command(short_help="Pause, drain, open or limit a queue.")
@click.argument("name")
@click.option("--pause", "state", flag_value="paused", help="Claim no more jobs from it.")
@click.option("--drain", "state", flag_value="draining", help="Claim no more jobs, and reject new ones over HTTP.")
@click.option("--open", "state", flag_value="open", help="Resume it.")
@click.option("--concurrency", type=NOT_NEGATIVE, help="Running jobs in all processes; 0: no limit.")
@click.option("--per-worker", type=NOT_NEGATIVE, help="Running jobs in each process; 0: no limit.")
@click.option("--fair", metavar="RULE",
              help="Serve tenants in turn: by partition_key, producer or args.NAME; none: by age.")  # fmt: skip
@click.option("--share", type=click.FloatRange(0, 1),
              help="The part of the threads that one tenant may have while others wait; 0: half.")  # fmt: skip
@click.option("--weight", "weights", multiple=True, metavar="TENANT=N",
              help="How many jobs of a tenant run for each of another; 0: as others. Repeatable.")  # fmt: skip
@click.option("--note", help="The reason, shown with the queue.")
@create_option
def queue(service: RemoteService, *, name: str, weights: tuple[str, ...], create: bool, **options: Any) -> None:
    """Pause, drain or open the queue NAME, change how many of its jobs run at once, or serve its tenants in turn.

    A queue that has had no job, worker or setting is refused, as its name may be misspelt, unless --create is given.

    \b
      dataloader queue etl.default --fair args.tenant --share 0.5 --weight acme=3
    """
    if options["fair"] == "none":
        options["fair"] = ""
    changes: dict[str, Any] = {key: (value or None) for key, value in options.items() if value is not None}
    if weights:
        changes["weights"] = dict(map(_parse_weight, weights))
    if not changes:
        raise click.UsageError("nothing to change; `dataloader queues` shows the queues, --help the options")
    query = {"strict": None if create else True}
    settings = service.client.request("PATCH", "/api/v1/queues", query=query, body={"queue": name, **changes})
    service.print_payload(settings, f"Queue {text.one_line(name)} is {settings['state']}{_queue_limits(settings)}.")


def _queue_limits(settings: text.Payload) -> str:
    parts = {"concurrency": "{} at once", "per_worker": "{} in each process", "fair": "tenants in turn, by {}"}
    shown = [words.format(text.one_line(str(settings[name]))) for name, words in parts.items() if settings[name]]
    return f": {', '.join(shown)}" if shown else ""


def _parse_weight(raw: str) -> tuple[str, int | None]:
    tenant, separator, number = raw.rpartition("=")
    if not separator or not number.isdecimal():
        raise click.BadParameter(f"{raw!r} is not TENANT=N with a whole number", param_hint="--weight")
    return tenant, int(number) or None


@remote_command(short_help="List the worker processes.")
@click.option("--drain", type=click.UUID, help="Stop this process from claiming jobs.")
@click.option("--undrain", type=click.UUID, help="Let this process claim jobs again.")
def workers(service: RemoteService, *, drain: UUID | None, undrain: UUID | None) -> None:
    """List the worker processes with their version, threads and memory, or drain one."""
    if drain is not None or undrain is not None:
        action = f"{drain}/drain" if drain is not None else f"{undrain}/undrain"
        worker = service.post(f"/api/v1/workers/{action}", repeatable=True)
        service.print_payload(
            worker, f"{worker['name']} {'is draining' if worker['draining'] else 'claims jobs again'}."
        )
        return
    service.print_list(service.get("/api/v1/workers"), "workers", _WORKERS)


@remote_command(short_help="Show how many threads the jobs ask for.")
@click.option("--queue", help="Only this queue.")
@click.option("--target-wait", type=DURATION, help="How long a ready job may wait for a thread.  [default: 60]")
def scaling(service: RemoteService, *, queue: str | None, target_wait: int | None) -> None:
    """Show how many threads the jobs of each queue ask for, how long they wait, and what is due within 5 minutes."""
    payload = service.get("/api/v1/scaling", queue=queue, target_wait_sec=target_wait)
    service.print_list(payload, "queues", _SCALING)


@remote_command("task-numbers", short_help="Show the statistics of tasks.")
@click.option("--period", type=click.Choice(["1h", "24h", "7d"]), default="24h", show_default=True,
              help="How far back to count.")  # fmt: skip
def task_numbers(service: RemoteService, *, period: str) -> None:
    """Show the statistics of tasks: jobs, failures, durations, and the last outcomes, newest first."""
    payload = {"statistics": service.get("/api/v1/tasks", period=period)["statistics"]}
    service.print_list(payload, "statistics", _TASKS)


@remote_command(short_help="List who did what.")
@click.option("--actor", help="Only actions with this key, by its name.")
@click.option("--key-id", metavar="ID", help="Only actions with this key, by its id.")
@click.option("--action", help="Only this action, such as cancel_job.")
@click.option("--subject", metavar="KIND", help="Only actions on this kind of resource: job, key, session.")
@click.option("--subject-id", metavar="ID", help="Only actions on this resource, such as a job's id.")
@click.option("--created-from", cls=RenamedOption, former="--since", type=TIME, help="Only actions then or later.")
@click.option("--created-to", cls=RenamedOption, former="--until", type=TIME, help="Only actions before this time.")
@click.option("--triggers", type=click.Choice(["all", "folded", "none"]),
              help="Each trigger, one line for those of an actor and hour, or none.  [default: all]")  # fmt: skip
@click.option("--before", type=POSITIVE, metavar="LINE", help="Only lines older than this one.")
@limit_option
def audit(
    service: RemoteService, *, created_from: datetime | None, created_to: datetime | None, **options: Any
) -> None:
    """List who did what, when and from where, and what it changed, newest first. It needs the scope `operate`."""
    page = service.get("/api/v1/audit", since=created_from, until=created_to, **options)
    service.print_list(page, "entries", AUDIT_LOG)
