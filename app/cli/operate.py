"""show, why, edit, clone, delete, watch, bulk, queues, queue, workers, task-numbers: whoever is on call, and acts."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import click

from app.cli import text
from app.cli.exits import Exit
from app.cli.service import Service, asks_service, usage
from app.cli.words import filter_of, filters, parse_moment, parse_object
from app.client.operations import JobFilter
from app.wording import counted

job_argument = click.argument("job_id", type=click.UUID)
_DAY_SEC, _HOUR_SEC, _MINUTE_SEC = 86_400, 3_600, 60


@click.command(short_help="Everything about one job.")
@job_argument
@asks_service
def show(service: Service, *, job_id: UUID) -> None:
    """Everything about one job: what it is, its args and result, and each try with its error."""
    job = service.client.api.job_detail(job_id)
    hidden = {"tries", "traceback", "args", "result", "progress", "checkpoint", "children", "parent", "key_holder"}
    lines = [
        f"{name:<18} {_fact(name, value)}" for name, value in job.items() if name not in hidden and value is not None
    ]
    lines += [f"{name:<18} {_word(job[name])}" for name in ("args", "progress", "result") if job[name] is not None]
    for one in job["tries"]:
        ended = "goes on" if one["outcome"] is None else f"{one['outcome']} at {text.local_time(one['ended_at'])}"
        lines.append(
            f"try {one['attempt']:<14} from {text.local_time(one['started_at'])} on {_word(one['worker'])}: {ended}"
        )
        lines += [f"  {text.clean(one['error'])}"] if one["error"] else []
    service.show(job, lines)


@click.command(short_help="Why a job waits, or runs for so long.")
@job_argument
@asks_service
def why(service: Service, *, job_id: UUID) -> None:
    """Why a job waits, runs for so long, or ended as it did."""
    told = service.client.api.job_why(job_id)
    lines = [text.clean(reason["sentence"]) for reason in told["reasons"]]
    if told["position"] is not None:
        lines.append(f"Its place in its row is {'' if told['position_exact'] else 'beyond '}{told['position']}.")
    if told["estimate"] is not None:
        basis = text.clean(told["estimate"]["basis"])
        lines.append(f"It may start in {_span(told['estimate']['seconds'])}: {basis}.")
    service.show(told, lines)


@click.command(short_help="Change a job that waits.")
@job_argument
@click.option("--priority", type=click.IntRange(min=0), help="Smaller runs first.")
@click.option("--available-at", type=usage(parse_moment), help="Not before this time: RFC 3339, or `in 5m`.")
@click.option("--args", "args", type=usage(parse_object), help="Its arguments, all of them, as a JSON object.")
@click.option("--max-attempts", type=click.IntRange(min=1), help="How many tries it has.")
@click.option("--lease-ttl", type=click.IntRange(min=1), help="How long its worker may be silent, in seconds.")
@click.option("--time-limit", type=click.IntRange(min=1), help="How long a try may take, in seconds.")
@asks_service
def edit(service: Service, *, job_id: UUID, **options: Any) -> None:
    """Change a job that waits. Its journal tells what it was before."""
    names = {"lease_ttl": "lease_ttl_sec", "time_limit": "time_limit_sec"}
    change = {names.get(name, name): value for name, value in options.items() if value is not None}
    if not change:
        raise click.UsageError("nothing is to be changed; see --help for what can be")
    job = service.client.api.job_patch(job_id, **change)
    service.show(job, [f"Job {job_id} is changed: {', '.join(sorted(change))}."])


@click.command(short_help="Make a new job like an old one.")
@job_argument
@click.option("--args", "args", type=usage(parse_object), help="Other arguments, all of them, as a JSON object.")
@click.option("--queue", help="Another queue.")
@click.option("--priority", type=click.IntRange(min=0), help="Another priority.")
@click.option("--idempotency-key", help="Makes it safe to ask twice.")
@asks_service
def clone(service: Service, *, job_id: UUID, **options: Any) -> None:
    """Make a new job like an old one, with other arguments if given."""
    given = {name: value for name, value in options.items() if value is not None}
    made = service.client.api.job_clone(job_id, **given)
    service.show(made, [f"Job {made['job_id']} is {made['status']}."])


@click.command(short_help="Delete a job that is over.")
@job_argument
@asks_service
def delete(service: Service, *, job_id: UUID) -> None:
    """Delete a job that is over, with its journal and its log."""
    service.show(service.client.api.job_delete(job_id), [f"Job {job_id} is deleted."])


@click.command(short_help="What happens to jobs, as it happens.")
@click.option("--queue", help="Only of jobs of this queue.")
@click.option("--kind", help="Only these kinds of events, separated by commas.")
@asks_service
def watch(service: Service, *, queue: str | None, kind: str | None) -> None:
    """What happens to jobs, as it happens, until Ctrl-C. With --json each event is a document of its own."""
    try:
        for event in service.client.stream(queue=queue, kind=kind):
            if service.as_json:
                click.echo(json.dumps(event.said, ensure_ascii=False))
            else:
                told = text.clean(event.payload.get("error") or event.payload.get("reason") or "")
                line = (
                    f"{text.local_time(event.at)}  {event.kind:<16} {event.job_id}  {text.clean(event.queue)}  {told}"
                )
                click.echo(line.rstrip())
    except KeyboardInterrupt:
        click.get_current_context().exit(Exit.INTERRUPTED)


@click.command(short_help="Do something to all jobs that fit.")
@click.argument("action", type=click.Choice(["cancel", "retry", "delete", "reprioritise", "list", "stop"]))
@click.argument("bulk_id", type=click.UUID, required=False)
@filters
@click.option("--priority", type=click.IntRange(min=0), help="The new priority, for reprioritise.")
@click.option("--expected", type=click.IntRange(min=0), help="How many jobs it will be; asked for if not given.")
@click.option("--dry-run", is_flag=True, help="Only count them.")
@asks_service
def bulk(
    service: Service,
    *,
    action: Any,
    bulk_id: UUID | None,
    priority: int | None,
    expected: int | None,
    dry_run: bool,
    **which: Any,
) -> None:
    """Do something to all jobs that fit: cancel, retry, delete or reprioritise them. `bulk list` tells how far such
    operations have come, `bulk stop BULK_ID` ends one.

    Without --expected the jobs are counted, and you are asked.
    """
    api = service.client.api
    if action == "list":
        found = api.bulk_list()
        rows = [
            (
                one["bulk_id"],
                one["action"],
                one["state"],
                f"{one['changed']} of {one['expected']}",
                text.local_time(one["created_at"]),
            )
            for one in found["operations"]
        ]
        names = ("operation", "action", "state", "jobs", "asked")
        service.table(found, names, rows, whole=names, empty="There was none.")
        return
    if action == "stop":
        if bulk_id is None:
            raise click.UsageError("name the operation: dataloader bulk stop BULK_ID")
        stopped = api.bulk_cancel(bulk_id)
        service.show(
            stopped, [f"{stopped['action']} is {stopped['state']}: {counted(stopped['changed'], 'job')} changed."]
        )
        return
    wanted: JobFilter = filter_of(which)  # type: ignore[assignment] # the options have the filter's names
    if dry_run or expected is None:
        count = api.bulk_count(action=action, filter=wanted)
        many = f"{'' if count['exact'] else 'about '}{counted(count['jobs'], 'job')}"
        if dry_run:
            service.show(count, [f"It would be {many}."])
            return
        click.confirm(f"{action} {many}?", abort=True, err=True)
        expected = count["jobs"] if count["exact"] else 2 * count["jobs"]
    more = {} if priority is None else {"priority": priority}
    begun = api.bulk_start(action=action, filter=wanted, expected=expected, **more)
    service.show(begun, [f"{begun['bulk_id']} is {begun['state']}; `dataloader bulk list` tells how far it has come."])


@click.command(short_help="How the queues do.")
@asks_service
def queues(service: Service) -> None:
    """How the queues do: what stands in them, how long it waits, and what happened in the last hour."""
    found = service.client.api.queue_list()
    names = ("queue", "state", "ready", "running", "oldest", "timed", "parked", "workers", "done/h", "failed/h", "p95")
    rows = [
        (
            text.clean(one["queue"]),
            one["state"],
            f"{one['ready']}{'' if one['ready_exact'] else '+'}",
            str(one["running"]),
            _span(one["oldest_ready_sec"]),
            str(one["timed"]),
            str(one["parked"]),
            str(one["workers"]),
            str(one["last_hour"]["succeeded"]),
            str(one["last_hour"]["failed"] + one["last_hour"]["lost"]),
            _span(one["last_hour"]["ran"]["p95"]),
        )
        for one in found["queues"]
    ]
    service.table(found, names, rows, whole=names[:4], empty="No queue is known.")


@click.command(short_help="Pause, drain or open a queue, or limit it.")
@click.argument("name")
@click.option("--pause", "state", flag_value="paused", help="Claim nothing from it.")
@click.option("--drain", "state", flag_value="draining", help="Nor take new jobs for it over HTTP.")
@click.option("--open", "state", flag_value="open", help="Go on.")
@click.option("--concurrency", type=click.IntRange(min=0), help="Jobs at once in all processes; 0: no limit.")
@click.option("--per-worker", type=click.IntRange(min=0), help="Jobs at once in each process; 0: as it has threads.")
@click.option("--note", help="Why, for whoever finds it so.")
@asks_service
def queue(service: Service, *, name: str, **options: Any) -> None:
    """Pause, drain or open the queue NAME, or change how many of its jobs run at once."""
    change = {key: (value or None) for key, value in options.items() if value is not None}
    if not change:
        raise click.UsageError("nothing is to be changed; see --help for what can be")
    rule = service.client.api.queue_rule(queue=name, **change)
    limits = f"{rule['concurrency'] or 'no limit'} at once, {rule['per_worker'] or 'no limit'} in each process"
    service.show(rule, [f"Queue {text.clean(name)} is {rule['state']}: {limits}."])


@click.command(short_help="Who works, and on what.")
@click.option("--drain", type=click.UUID, help="Tell this one to claim nothing more.")
@click.option("--undrain", type=click.UUID, help="Tell this one to claim again.")
@asks_service
def workers(service: Service, *, drain: UUID | None, undrain: UUID | None) -> None:
    """Who works, and on what: processes with their version, threads, memory, and what each of them runs."""
    api = service.client.api
    if drain is not None or undrain is not None:
        told = api.worker_drain(drain) if drain is not None else api.worker_undrain(str(undrain))
        service.show(told, [f"{told['name']} {'claims nothing more' if told['draining'] else 'claims again'}."])
        return
    found = api.worker_list()
    names = ("worker", "id", "state", "busy", "memory", "version", "hears", "queues")
    rows = [
        (
            text.clean(one["name"]),
            one["worker_id"],
            "gone" if not one["alive"] else "drains" if one["draining"] else "alive",
            f"{one['busy']}/{one['threads']}",
            "" if one["rss_bytes"] is None else f"{one['rss_bytes'] / 2**20:.0f} MB",
            text.clean(one["version"]),
            one["listener"] or "",
            text.clean(", ".join(one["queues"])),
        )
        for one in found["workers"]
    ]
    service.table(found, names, rows, whole=names[:4], empty="No worker was heard of.")


@click.command("task-numbers", short_help="How the tasks' jobs did.")
@click.option(
    "--period", type=click.Choice(["1h", "24h", "7d"]), default="24h", show_default=True, help="How far back."
)
@asks_service
def task_numbers(service: Service, *, period: Any) -> None:
    """How the tasks' jobs did: how many, how many failed, how long they took, and their last ends, newest first."""
    found = service.client.api.task_list(period=period)
    marks = {"succeeded": ".", "failed": "F", "lost": "L", "canceled": "c", "retried": "r"}
    rows = [
        (
            text.clean(one["name"]),
            str(one["happened"]["succeeded"]),
            str(one["happened"]["failed"] + one["happened"]["lost"]),
            "" if one["happened"]["failure_rate"] is None else f"{one['happened']['failure_rate']:.1%}",
            _span(one["happened"]["ran"]["p50"]),
            _span(one["happened"]["ran"]["p95"]),
            "".join(marks.get(run["outcome"], "?") for run in one["last_runs"]),
        )
        for one in found["numbers"]
    ]
    names = ("task", "succeeded", "failed", "rate", "p50", "p95", "last")
    service.table({"numbers": found["numbers"]}, names, rows, whole=("task",), empty="No job has run yet.")


def _fact(name: str, value: Any) -> str:
    return text.local_time(value) if name.endswith("_at") and isinstance(value, str) else _word(value)


def _word(value: Any) -> str:
    return text.clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _span(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for size, unit in ((_DAY_SEC, "d"), (_HOUR_SEC, "h"), (_MINUTE_SEC, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
