"""Commands that run in this process: serve, dev, worker, drain, migrate, prune, config, run, psql.

Each imports what it needs: Flask, pydantic, the driver and the pipelines are not for commands that send requests.
"""
# ruff: noqa: PLC0415

from __future__ import annotations

import dataclasses
import gc
import json
import re
import signal
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from dataloader.app.cli import text
from dataloader.app.cli.exit_codes import ExitCode
from dataloader.app.cli.output import Table, print_payload
from dataloader.app.cli.parsing import (
    DURATION,
    OBJECT,
    POSITIVE,
    SECONDS,
    TIME,
    Parsed,
    args_options,
    json_option,
    option,
    without_none,
)
from dataloader.app.wording import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataloader.app.config import Settings

_SETTINGS = Table("settings", "variable!, value, source!, default")
_UNIT_BYTES = {"k": 1024, "m": 1024**2, "g": 1024**3}
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*([kmg])i?b?", re.IGNORECASE)


@contextmanager
def without_collector() -> Iterator[None]:
    """Import a service without the garbage collector, which would visit all modules again and again: it finds nothing
    there, and took a quarter of the processor time of a start and a stop."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def load_settings(*, loads_pipelines: bool = False, **overrides: Any) -> Settings:
    """Load the settings of the environment; options of the command line override them."""
    from dataloader.app.config import load_settings as load

    return load(loads_pipelines=loads_pipelines).model_copy(update=without_none(overrides))


def parse_queue(raw: str) -> dict[str, Any]:
    """Parse QUEUE:THREADS."""
    queue, _, threads = raw.rpartition(":")
    if not queue or not threads.isdecimal() or int(threads) == 0:
        raise ValueError(f"{raw!r} is not QUEUE:THREADS, such as etl.default:2")
    return {"queue": queue, "concurrency": int(threads)}


def parse_label(raw: str) -> tuple[str, bool | str]:
    """Parse NAME, NAME=true, NAME=false or NAME=TEXT."""
    name, equals, value = raw.partition("=")
    if not name or (equals and not value):
        raise ValueError(f"{raw!r} is neither NAME nor NAME=VALUE, such as gpu or zone=north")
    return name, {"": True, "true": True, "false": False}.get(value, value)


def parse_size(raw: str) -> int:
    """Bytes of a text like 800MB or 4 GB, by 1024."""
    found = _SIZE.fullmatch(raw.strip())
    if found is None or (size := int(float(found[1]) * _UNIT_BYTES[found[2].lower()])) < 1:
        raise ValueError(f"{raw!r} is not a size; one looks like 800MB or 4GB")
    return size


_HOST = option("--host", metavar="ADDRESS", help="The address to listen on.  [APP_HOST]")
_PORT = option("--port", type=click.IntRange(1, 65535), metavar="PORT", help="The port to listen on.  [APP_PORT]")


@click.command(short_help="Run the API, the dashboard and the workers.")
@_HOST
@_PORT
@option("--no-workers", is_flag=True, help="Only answer HTTP; jobs are run by `dataloader worker` elsewhere.")
def serve(*, host: str | None, port: int | None, no_workers: bool) -> int:
    """Run the API, the dashboard and the workers until Ctrl-C or SIGTERM.

    Without DL_DB_DSN or PG_HOST it starts an embedded PostgreSQL, and keeps its data in DL_DATA_DIR.
    """
    with without_collector():
        from dataloader.app.runtime import commands
    from dataloader.app.cli.banner import serve_banner
    from dataloader.app.runtime.announcement import announce

    settings, workers = load_settings(loads_pipelines=True, app_host=host, app_port=port), not no_workers
    return commands.serve(
        settings,
        workers=workers,
        banner=lambda startup: announce(settings, startup, serve_banner(settings, startup, workers=workers)),
    )


@click.command(short_help="Run `serve`, and restart it when a task changes.")
@_HOST
@_PORT
def dev(**options: Any) -> int:
    """Run the API, the dashboard and the workers, and restart them when a file of a task package changes.

    Jobs that run are given back without using up an attempt, and run again with the new code. A file with a syntax
    error is reported, and the service continues as it is until the file is mended. For local development.
    """
    from dataloader.app.runtime.dev import develop

    arguments = [word for name, value in without_none(options).items() for word in (f"--{name}", str(value))]
    return develop(load_settings, arguments, report=lambda line: click.echo(f"dev: {line}"))


@click.command(short_help="Run workers only.")
@option("--queue", "queues", type=Parsed("queue:threads", parse_queue), multiple=True,
        help="A queue to work on and its number of threads; may be repeated.  [WORKERS_JSON]")  # fmt: skip
@option("--workers-json", metavar="JSON", help="Override WORKERS_JSON.")
@option("--label", "labels", type=Parsed("name[=value]", parse_label), multiple=True,
        help="A label of this process, such as gpu or spot=true, which tasks may require; may be repeated. "
        "Replaces those of WORKERS_JSON.")  # fmt: skip
@option("--max-jobs", type=POSITIVE, help="Start so many jobs, and exit when they have ended.")
@option("--exit-when-idle", "max_idle_sec", type=DURATION, help="Exit when no job has run for so long.")
@option("--max-hours", type=click.FloatRange(min=0, min_open=True), metavar="HOURS",
        help="After so long start no more jobs, and exit when those that run have ended.")  # fmt: skip
@option("--max-rss", "max_rss_bytes", type=Parsed("size", parse_size),
        help="The same when the process has more memory than this, such as 4GB or 800MB.")  # fmt: skip
@option("--preemption-notice", metavar="SOURCE",
        help="Drain when the machine is to be taken away: an address that answers 200, file:PATH or "
        "signal:NAME.")  # fmt: skip
@option("--notice-time", "notice_sec", type=SECONDS, default=30, show_default=True,
        help="How long before the end of the machine the notice comes; jobs get 20 seconds less.")  # fmt: skip
def worker(
    *,
    queues: tuple[dict[str, Any], ...],
    workers_json: str | None,
    labels: tuple[tuple[str, bool | str], ...],
    max_hours: float | None,
    preemption_notice: str | None,
    notice_sec: float,
    **limits: Any,
) -> int:
    """Run workers only, without HTTP, until Ctrl-C or SIGTERM."""
    with without_collector():
        from dataloader.app.runtime import commands
    from dataloader.app.cli.banner import worker_banner
    from dataloader.app.config.loading import parse_settings
    from dataloader.app.runtime.announcement import announce
    from dataloader.app.runtime.preemption import PreemptionNotice
    from dataloader.app.runtime.worker import Lifetime

    try:
        notice = None if preemption_notice is None else PreemptionNotice.parse(preemption_notice, notice_sec)
    except ValueError as error:
        raise click.UsageError(f"--preemption-notice: {error}") from error

    if queues and workers_json is not None:
        raise click.UsageError("--queue and --workers-json set the same thing; use one of them")
    raw, workers = json.dumps(queues) if queues else workers_json, None
    if raw is not None:
        parsed, errors = parse_settings({"WORKERS_JSON": raw})
        if errors:
            raise click.UsageError(f"{raw} is not what --queue or --workers-json can be: {errors[0].remedy}")
        workers = parsed.workers
    settings = load_settings(loads_pipelines=True, workers=workers)
    if labels:
        entries = [{**entry.to_dict(), "labels": dict(labels)} for entry in settings.workers]
        parsed, errors = parse_settings({"WORKERS_JSON": json.dumps(entries)})
        if errors:
            raise click.UsageError(f"--label: {errors[0].remedy.partition('; ')[0]}")
        settings = settings.model_copy(update={"workers": parsed.workers})
    max_age_sec = None if max_hours is None else 3600 * max_hours
    return commands.run_worker(
        settings,
        banner=lambda startup: announce(settings, startup, worker_banner(settings, startup)),
        lifetime=Lifetime(max_age_sec=max_age_sec, notice=notice, **limits),
    )


@click.command(short_help="Drain the worker processes of this host.")
@option("--self", "is_self", is_flag=True, required=True, help="Those of this host, or of this container.")
@option("--wait", is_flag=True, help="Wait until their jobs have ended.")
@option("--timeout", type=DURATION, help="Wait, but no longer than this.")
@json_option
def drain(*, is_self: bool, wait: bool, timeout: float | None) -> int:
    """Have the worker processes of this host claim no more jobs: for a hook that runs before they are stopped.

    Exits with code 1 if --timeout ended before their jobs did. `dataloader workers --drain ID` drains a single one.
    """
    from dataloader.app.runtime import commands

    wait = wait or timeout is not None
    drained = commands.drain_host(load_settings(), wait=wait, timeout_sec=timeout)
    jobs = f"running: {format_count(drained.running, 'job')}" if drained.running else "no job runs"
    line = f"{format_count(drained.workers, 'worker process', 'worker processes')} drained; {jobs}."
    print_payload(
        {"workers": drained.workers, "running": drained.running},
        line if drained.workers else "No live worker process is registered for this host.",
    )
    return ExitCode.FAILURE if wait and drained.running else ExitCode.OK


@click.command(short_help="Bring the database to this version's tables.")
@option("--roles", is_flag=True, help="Only print the SQL of the roles for least privilege, and change nothing.")
@option("--uninstall", is_flag=True, help="Show what of the queue is in the schema, and remove it.")
@option("--yes", is_flag=True, help="With --uninstall: do not ask for confirmation.")
@option("--force", is_flag=True, help="With --uninstall: also while processes or jobs run.")
@option("--lock-wait", type=DURATION, help="How long to wait for tables that others have locked; else 10 minutes.")
@json_option
def migrate(*, roles: bool, uninstall: bool, yes: bool, force: bool, lock_wait: float | None) -> None:
    """Create the tables, or bring those of an earlier version up to date, in one transaction and under a lock.

    Doing it twice does no harm. Tables of a newer version are left alone; unless they serve this version too, it fails.
    While another session has locked a table it tries again, a fifth of a second at a time, so that jobs run meanwhile.

    --uninstall removes the tables with all jobs, the functions and the types of the queue, in one transaction. The
    schema, roles, and whatever else is in the schema stay. It shows them first, and asks for confirmation.
    """
    from dataloader.app.runtime import commands

    if (yes or force) and not uninstall:
        raise click.UsageError("--yes and --force belong to --uninstall")
    if roles and uninstall:
        raise click.UsageError("--roles changes nothing, and --uninstall removes the queue; use one of them")
    settings = load_settings()
    if uninstall:
        from dataloader.app.cli.uninstall import uninstall_queue

        uninstall_queue(settings, yes=yes, force=force)
        return
    if roles:
        click.echo(commands.roles_sql(settings.schema), nl=False)
        return
    done = commands.migrate(settings, lock_wait_sec=lock_wait)
    payload = {"version_before": done.from_version, "version_after": done.to_version, "steps": list(done.steps)}
    if done.from_version == done.to_version and not done.steps:
        lines = [f"The tables are at version {done.to_version} already; there was nothing to do."]
    else:
        before = "no tables" if done.from_version is None else f"version {done.from_version}"
        lines = [f"Found {before}; the tables are now at version {done.to_version}."]
        lines += [f"  {step}" for step in done.steps]
    if done.from_version == 0 and (held := commands.preview_held_retention(settings)) is not None:
        count = sum(held.jobs.values())
        payload |= {"retention_held": True, "jobs_held": count}
        lines += [
            f"Nothing is deleted from these tables until you ask for it. {'more than ' if held.is_truncated else ''}"
            f"{format_count(count, 'job')} and their events are older than the DL_KEEP_… settings allow.",
            "  To see them: dataloader prune --dry-run",
            "  To let workers delete them, now and from now on: set DL_RETENTION_ENABLED=true",
            "  To keep everything: set DL_RETENTION_ENABLED=false, or nothing",
        ]
    print_payload(payload, *lines)


@click.command(short_help="Delete old finished jobs.")
@option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@json_option
def prune(*, dry_run: bool) -> None:
    """Delete jobs that ended longer ago than the DL_KEEP_… settings say, and partitions of the events and of the logs.

    Workers do the same by themselves, unless DL_RETENTION_ENABLED is false, or is not given and the tables were
    upgraded from version 0.
    """
    from dataloader.app.runtime import commands

    swept = commands.prune(load_settings(), dry_run=dry_run)
    counts = sorted(swept.jobs.items())
    jobs = [{"status": status, "task": task, "jobs": n} for (status, task), n in counts]
    deleted, dropped = ("Would delete", "Would drop") if dry_run else ("Deleted", "Dropped")
    lines = [f"{deleted} {format_count(n, 'job')} of {task} that ended as {status}." for (status, task), n in counts]
    lines += [f"{dropped} {partition}." for partition in swept.partitions]
    lines += ["There are more."] if swept.is_truncated else []
    print_payload(
        {"dry_run": dry_run, "jobs": jobs, "partitions": swept.partitions, "has_more": swept.is_truncated},
        *(lines or ["Nothing is older than its retention period."]),
    )


@click.command(short_help="Show every setting.")
@option("--docs", is_flag=True, help="Print the page that describes every variable, in Markdown.")
@option("--dsn", is_flag=True, help="Only print the database's connection string, WITH its password.")
@json_option
def config(*, docs: bool, dsn: bool) -> None:
    """Show every setting with its value, where it comes from and its default. Secrets are masked.

    --dsn prints the connection string with its password, for other programs; for psql there is `dataloader psql`. The
    embedded server's socket exists while the service runs.
    """
    if docs and dsn:
        raise click.UsageError("--docs and --dsn print different things; use one of them")
    if docs:
        from dataloader.app.config.docs import configuration_page

        click.echo(configuration_page(), nl=False)
        return
    settings = load_settings()
    if dsn:
        from dataloader.app.runtime import commands

        connection = commands.database_dsn(settings)
        print_payload({"dsn": connection}, connection)
        return
    for warning in settings.warnings:
        click.echo(f"Note: {warning}", err=True)
    _SETTINGS.print({"settings": [dataclasses.asdict(setting) for setting in settings.describe()]})


@click.command(short_help="Run a task here, in the foreground.")
@click.argument("task")
@args_options
@option("--lock-key", help="Wait for jobs with this key.  [default: the task's]")
@option("--local", is_flag=True, help="Run with a context in memory: no job, no queue, no lock.")
@option("--upstream", type=OBJECT, help="With --local: the results of its parents by their keys, as JSON.")
@option("--partition-key", "part", metavar="SLICE", help="The slice to load, such as 2026-01-31.")
@option("--logical-at", type=TIME, help="The nominal time it is for, as a schedule sets it.")
def run(*, task: str, args: dict[str, Any] | None, **options: Any) -> int:
    """Run TASK in this process, with its progress and its log on the terminal, and its result on standard output.

    It is a real job with one attempt that only this process claims, in the settings' database or the embedded one.
    With --local there is no job: progress and log are only printed.

    \b
      dataloader run noop --arg sleep1=1
      dataloader run load.cbr.rates --args '{"date": "2026-11-20"}' --local
      dataloader run load.cbr.rates --partition-key 2026-11-20

    With --partition-key or --logical-at the args are a template with placeholders such as {partition}; without args
    they are those of the task's schedule in code.

    Ctrl-C stops it at its next safe point; a second one ends the process at once.
    """
    from dataloader.app.cli.terminal import Terminal
    from dataloader.app.runtime.foreground import run_task

    if options["upstream"] is not None and not options["local"]:
        raise click.UsageError("--upstream needs --local: a job reads the results of its own parents")
    terminal = Terminal()
    outcome = run_task(load_settings(), task, args, terminal, **options)
    if outcome.traceback:
        click.echo(outcome.traceback, err=True, nl=False)
    click.echo(f"{outcome.status}{f': {outcome.error}' if outcome.error else ''}", err=True)
    if outcome.result is not None:
        click.echo(text.json_line(outcome.result))
    if outcome.status.name == "SUCCEEDED":
        return ExitCode.OK
    return ExitCode.INTERRUPTED if terminal.is_stop_requested else ExitCode.FAILURE


@click.command(
    short_help="Open psql on the service's database.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", metavar="[PSQL_OPTIONS]...", nargs=-1, type=click.UNPROCESSED)
def psql(*, arguments: tuple[str, ...]) -> int:
    """Open psql on the database of the settings, or on the embedded one, with the queue's schema first in its path.

    \b
      dataloader psql
      dataloader psql --command 'SELECT status, count(*) FROM dl_jobs GROUP BY 1'

    The password goes to psql by its environment, never by the command line, which everybody on the machine can read.
    An embedded server that does not run is started, and stopped when psql ends. The exit code is that of psql.
    """
    from dataloader.app.runtime import commands

    with (
        commands.psql_command(load_settings()) as (program, environment),
        subprocess.Popen([program, *arguments], env=environment) as process,
    ):
        # Ctrl-C is psql's alone, and ends a statement. Ignored only now: psql would inherit that.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            return process.wait()
        finally:
            signal.signal(signal.SIGINT, before)


COMMANDS = {
    "Run the service": (serve, dev, worker, drain, migrate, prune, psql),
    "Jobs": (run,),
    "Settings and access": (config,),
}
