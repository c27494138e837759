"""Commands of operators: watch, bulk, queues, queue, limits, workers, scaling, task-numbers,
audit."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import quote
from uuid import UUID

import click

from app.cli import text
from app.cli.exit_codes import ExitCode
from app.cli.parsing import (
    NOT_NEGATIVE,
    OBJECT,
    POSITIVE,
    RATE,
    TIME,
    RenamedOption,
    filter_options,
    limit_option,
    without_none,
)
from app.cli.service_options import RemoteService, remote_command
from app.cli.tables import Table
from app.wording import format_count

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
        "oldest": lambda queue: text.format_duration(queue["oldest_ready_sec"]),
        "done/h": lambda queue: queue["last_hour"]["succeeded"],
        "failed/h": lambda queue: queue["last_hour"]["failed"] + queue["last_hour"]["lost"],
        "p95": lambda queue: text.format_duration(queue["last_hour"]["run_time"]["p95"]),
    },
    uncut="queue, state, ready, running",
    empty_message="No queues.",
)


def _format_allowance(limit: text.Payload) -> str:
    allowances = []
    if limit["concurrency"] is not None:
        allowances.append(f"{limit['concurrency']} at once")
    if limit["rate"] is not None:
        burst = f", {limit['burst']} of them at once" if (limit["burst"] or 1) > 1 else ""
        allowances.append(f"{limit['rate']} in {text.format_duration(limit['per_sec'])}{burst}")
    return " and ".join(allowances) or "no limit"


def _format_use(limit: text.Payload) -> str:
    waiting = f"{limit['waiting']}{'' if limit['waiting_exact'] else '+'}"
    return f"{limit['used']} in use, {waiting} waiting"


_LIMITS = Table(
    "limit=name, setting, allowed, used, waiting, since, note",
    {
        "allowed": _format_allowance,
        "waiting": lambda limit: f"{limit['waiting']}{'' if limit['waiting_exact'] else '+'}",
        "since": lambda limit: limit["waiting_since"] and text.format_time(limit["waiting_since"]),
    },
    uncut="limit, allowed, used, waiting",
    empty_message="No limits.",
)
_WORKERS = Table(
    "worker=name, id=worker_id, state, busy, memory, version, listener, queues",
    {
        "state": lambda worker: "gone" if not worker["alive"] else "draining" if worker["draining"] else "alive",
        "busy": lambda worker: f"{worker['busy']}/{worker['threads']}",
        "memory": lambda worker: worker["rss_bytes"] and f"{worker['rss_bytes'] / 2**20:.0f} MB",
        "queues": lambda worker: ", ".join(worker["queues"]),
    },
    uncut="worker, id, state, busy",
    empty_message="No workers.",
)
_SCALING = Table(
    "queue, wanted=wanted_threads, busy=busy_threads, idle=idle_threads, ready, oldest, p95, due=due_soon, draining",
    {
        "oldest": lambda queue: text.format_duration(queue["oldest_ready_sec"]),
        "p95": lambda queue: text.format_duration(queue["wait_p95_sec"]),
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
        "p50": lambda task: text.format_duration(task[_TASK_COUNTS]["run_time"]["p50"]),
        "p95": lambda task: text.format_duration(task[_TASK_COUNTS]["run_time"]["p95"]),
        "last": lambda task: "".join(_OUTCOME_LETTERS.get(run["outcome"], "?") for run in task["last_runs"]),
    },
    uncut="task",
    empty_message="No job has run yet.",
)


def _format_changes(line: text.Payload) -> str:
    """`priority 100 → 5`; the fields alone of a resource that was created or deleted."""
    before, after = line["before"], line["after"]
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
@click.option("--max", "max_jobs", type=POSITIVE, help="How many jobs to retry at most, for redrive.")
@click.option("--expected", type=NOT_NEGATIVE, help="The expected number of jobs; counted if not given.")
@click.option("--dry-run", is_flag=True, help="Only count the jobs.")
def bulk(service: RemoteService, *, action: str, bulk_id: UUID | None, **options: Any) -> None:
    """Cancel, retry, delete or reprioritise all jobs that match a filter. `bulk list` shows such operations and their
    progress, `bulk stop BULK_ID` ends one.

    `bulk redrive` retries at a rate, oldest first, and stops when the circuit breaker of a job's task is open.

    \b
      dataloader bulk redrive --per-minute 60 --status failed,lost --fingerprint 'KeyError sales.py:load'

    Without --expected the jobs are counted, and the command asks for confirmation.
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
    expected: int | None,
    dry_run: bool,
    **options: Any,
) -> None:
    if action == "redrive" and per_minute is None and not dry_run:
        raise click.UsageError("redrive needs --per-minute")
    body: dict[str, Any] = {"action": action, "filter": without_none(options)}
    if dry_run or expected is None:
        count = service.post("/api/v1/bulk/count", body, repeatable=True)
        jobs = f"{'' if count['exact'] else 'about '}{format_count(count['jobs'], 'job')}"
        if dry_run:
            service.print_payload(count, f"{jobs} would be changed; none was.")
            return
        bound = "" if max_jobs is None else f"at most {max_jobs} of "
        click.confirm(f"{action} {bound}{jobs}?", abort=True, err=True)
        expected = count["jobs"] if count["exact"] else 2 * count["jobs"]
    body |= without_none({"priority": priority, "per_minute": per_minute, "args_patch": args_patch, "max": max_jobs})
    started = service.post("/api/v1/bulk", {**body, "expected": expected})
    service.print_payload(
        started, f"{started['bulk_id']} is {started['state']}; `dataloader bulk list` shows its progress."
    )


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
def queue(service: RemoteService, *, name: str, weights: tuple[str, ...], **options: Any) -> None:
    """Pause, drain or open the queue NAME, change how many of its jobs run at once, or serve its tenants in turn.

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
    settings = service.client.request("PATCH", "/api/v1/queues", body={"queue": name, **changes})
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


def _breaker_state(breaker: text.Payload) -> str:
    is_paused = breaker["state"] == "open" and breaker["probe_at"] is None
    return "paused" if is_paused else str(breaker["state"]).replace("_", "-")


_BREAKERS = Table(
    "task, state, failed=failed_in_row, waiting, opened=opened_at, reason",
    {"state": _breaker_state},
    uncut="task, state",
    empty_message="No task has a circuit breaker, and none is paused.",
)


@remote_command(short_help="List circuit breakers; pause or resume a task.")
@click.argument("action", type=click.Choice(["list", "show", "pause", "resume", "set", "delete"]), default="list")
@click.argument("task", required=False)
@click.option("--failures", type=POSITIVE, help="It opens after so many attempts in a row that ended with an error.")
@click.option("--window", "window_sec", type=POSITIVE, help="A row of failures ends so long after its last one.")
@click.option("--resume", "resume_sec", type=POSITIVE, help="How long after opening one job is tried.")
@click.option("--note", "reason", help="Why the task is paused.")
def breakers(service: RemoteService, *, action: str, task: str | None, reason: str | None, **options: Any) -> None:
    """List the circuit breakers of tasks; pause a task, let it run again, or change its breaker.

    \b
      dataloader breakers pause load.sales --note "the warehouse is being moved"
      dataloader breakers resume load.sales
      dataloader breakers set load.sales --failures 5 --resume 300

    While a breaker is open no job of the task starts; running jobs continue.
    """
    if action == "list":
        service.print_list(service.get("/api/v1/breakers"), "breakers", _BREAKERS)
        return
    if task is None:
        raise click.UsageError(f"name the task: dataloader breakers {action} TASK")
    path = f"/api/v1/tasks/{quote(task, safe='')}/breaker"
    if action == "delete":
        service.print_payload(service.delete(path), f"The breaker of {text.one_line(task)} is deleted.")
        return
    if action == "show":
        found = service.get(path)
    else:
        states = {"pause": {"state": "open", "reason": reason}, "resume": {"state": "closed", "reason": reason}}
        body = without_none(states.get(action, options))
        if not body:
            raise click.UsageError("nothing to set; see --help for the options")
        found = service.client.request("PUT", path, body=body, repeatable=True)
    why = f": {text.one_line(found['reason'])}" if found["reason"] else ""
    state = "resumed" if action == "resume" else _breaker_state(found)
    service.print_payload(found, f"{text.one_line(task)} is {state}{why}.")


@remote_command(short_help="List, set or delete limits.")
@click.argument("action", type=click.Choice(["list", "show", "set", "delete"]), default="list")
@click.argument("name", required=False)
@click.option("--concurrency", type=NOT_NEGATIVE, help="Weight of the jobs that run at a time; 0: none may start.")
@click.option("--rate", type=RATE, metavar="N/PERIOD", help="Starts in a period: 10/s, 100/1m, 5/30s.")
@click.option("--burst", type=POSITIVE, help="Of a rate, how many may start at once.  [default: 1]")
@click.option("--note", help="The reason, shown with the limit.")
def limits(
    service: RemoteService, *, action: str, name: str | None, rate: tuple[int, float] | None, **options: Any
) -> None:
    """List limits, show who holds one, set or delete it. A job names limits when it is triggered, or its task does.

    \b
      dataloader limits set warehouse --concurrency 4
      dataloader limits set partner-api --rate 10/s
      dataloader limits set 'tenant:*' --concurrency 2     the default of tenant:acme, tenant:other …
      dataloader limits set task:load.sales --concurrency 1

    `set` replaces the whole limit.
    """
    if action == "list":
        service.print_list(service.get("/api/v1/limits"), "limits", _LIMITS)
        return
    if name is None:
        raise click.UsageError(f"name the limit: dataloader limits {action} NAME")
    path = f"/api/v1/limits/{quote(name, safe='')}"
    if action == "delete":
        service.print_payload(service.delete(path), f"Limit {text.one_line(name)} is deleted.")
    elif action == "set":
        body = without_none(options) | ({} if rate is None else {"rate": rate[0], "per_sec": rate[1]})
        setting = service.client.request("PUT", path, body=body, repeatable=True)
        service.print_payload(setting, f"Limit {text.one_line(name)}: {_format_allowance(setting)}.")
    else:
        limit = service.get(path)
        lines = [f"{text.one_line(name)}: {_format_allowance(limit)}; {_format_use(limit)}"]
        for holder in limit["holders"]:
            since = text.format_time(holder["started_at"]) if holder["started_at"] else ""
            lines.append(f"  {holder['job_id']}  {holder['weight']}  {text.one_line(holder['task'])}  since {since}")
        service.print_payload(limit, *lines)


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
@click.option(
    "--target-wait", type=POSITIVE, metavar="SECONDS", help="How long a ready job may wait for a thread.  [default: 60]"
)
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
