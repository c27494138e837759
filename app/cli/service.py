"""Commands that run in this process: serve, worker, migrate, prune, config, tasks, doctor, run, psql.

Each imports what it needs: Flask, pydantic, the driver and the pipelines are not for commands that send requests.
"""
# ruff: noqa: PLC0415

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import click

from dataloader.app.cli import text
from dataloader.app.cli.banner import serve_banner, worker_banner
from dataloader.app.cli.exit_codes import ExitCode
from dataloader.app.cli.parsing import (
    DURATION,
    OBJECT,
    POSITIVE,
    SECONDS,
    TIME,
    args_options,
    json_option,
    option_type,
    parse_label,
    parse_queue,
    parse_size,
    without_none,
)
from dataloader.app.cli.tables import Table
from dataloader.app.queue.labels import format_labels
from dataloader.app.runtime.announcement import announce
from dataloader.app.wording import format_count

if TYPE_CHECKING:
    from datetime import datetime

    from dataloader.app.config import Settings

_MARKS = {"ok": ("ok", "green"), "info": ("note", "cyan"), "warning": ("warning", "yellow"), "error": ("ERROR", "red")}
_FINDING_FIELDS = ("check", "severity", "message", "remedy", "facts")
_SETTINGS = Table("variable, value, source, default", uncut="variable, source")
_TASKS = Table("task, kind, module, requires, python", {"requires": lambda task: format_labels(task["requires"])})


def _load_settings(*, loads_pipelines: bool = False, **overrides: Any) -> Settings:
    """Load the settings of the environment; options of the command line override them."""
    from dataloader.app.config import load_settings

    return load_settings(loads_pipelines=loads_pipelines).model_copy(update=without_none(overrides))


@click.command(short_help="Run the API, the dashboard and the workers.")
@click.option("--host", help="The address to listen on.  [APP_HOST]")
@click.option("--port", type=click.IntRange(1, 65535), help="The port to listen on.  [APP_PORT]")
@click.option("--no-workers", is_flag=True, help="Only answer HTTP; jobs are run by `dataloader worker` elsewhere.")
def serve(*, host: str | None, port: int | None, no_workers: bool) -> None:
    """Run the API, the dashboard and the workers until Ctrl-C or SIGTERM.

    Without DL_DB_DSN or PG_HOST it starts an embedded PostgreSQL, and keeps its data in DL_DATA_DIR.
    """
    from dataloader.app.runtime import commands

    settings, workers = _load_settings(loads_pipelines=True, app_host=host, app_port=port), not no_workers
    code = commands.serve(
        settings,
        workers=workers,
        banner=lambda startup: announce(settings, startup, serve_banner(settings, startup, workers=workers)),
    )
    click.get_current_context().exit(code)


@click.command(short_help="Run `serve`, and restart it when a task changes.")
@click.option("--host", help="The address to listen on.  [APP_HOST]")
@click.option("--port", type=click.IntRange(1, 65535), help="The port to listen on.  [APP_PORT]")
def dev(*, host: str | None, port: int | None) -> None:
    """Run the API, the dashboard and the workers, and restart them when a file of a task package changes.

    Jobs that run are given back without using up an attempt, and run again with the new code. A file with a syntax
    error is reported, and the service continues as it is until the file is mended. For local development.
    """
    from dataloader.app.runtime.dev import develop

    options = {"--host": host, "--port": port}
    arguments = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    code = develop(_load_settings, arguments, report=lambda line: click.echo(f"dev: {line}"))
    click.get_current_context().exit(code)


@click.command(short_help="Run workers only.")
@click.option("--queue", "queues", type=option_type(parse_queue), multiple=True, metavar="QUEUE:THREADS",
              help="A queue to work on and its number of threads; may be repeated.  [WORKERS_JSON]")  # fmt: skip
@click.option("--workers-json", metavar="JSON", help="Override WORKERS_JSON.")
@click.option("--label", "labels", type=option_type(parse_label), multiple=True, metavar="NAME[=VALUE]",
              help="A label of this process, such as gpu or spot=true, which tasks may require; may be repeated. "
              "Replaces those of WORKERS_JSON.")  # fmt: skip
@click.option("--max-jobs", type=POSITIVE, metavar="COUNT", help="Start so many jobs, and exit when they have ended.")
@click.option("--exit-when-idle", type=DURATION, help="Exit when no job has run for so long.")
@click.option("--max-hours", type=click.FloatRange(min=0, min_open=True), metavar="HOURS",
              help="After so long start no more jobs, and exit when those that run have ended.")  # fmt: skip
@click.option("--max-rss", type=option_type(parse_size), metavar="SIZE",
              help="The same when the process has more memory than this, such as 4GB or 800MB.")  # fmt: skip
@click.option("--preemption-notice", metavar="SOURCE",
              help="Drain when the machine is to be taken away: an address that answers 200, file:PATH or "
              "signal:NAME.")  # fmt: skip
@click.option("--notice-time", "notice_sec", type=SECONDS, default=30, show_default=True,
              help="How long before the end of the machine the notice comes; jobs get 20 seconds less.")  # fmt: skip
def worker(
    *,
    queues: tuple[dict[str, Any], ...],
    workers_json: str | None,
    labels: tuple[tuple[str, bool | str], ...],
    max_jobs: int | None,
    exit_when_idle: float | None,
    max_hours: float | None,
    max_rss: int | None,
    preemption_notice: str | None,
    notice_sec: float,
) -> None:
    """Run workers only, without HTTP, until Ctrl-C or SIGTERM."""
    from dataloader.app.config.loading import parse_settings
    from dataloader.app.runtime import commands
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
    settings = _load_settings(loads_pipelines=True, workers=workers)
    if labels:
        entries = [{**entry.to_dict(), "labels": dict(labels)} for entry in settings.workers]
        parsed, errors = parse_settings({"WORKERS_JSON": json.dumps(entries)})
        if errors:
            raise click.UsageError(f"--label: {errors[0].remedy.partition('; ')[0]}")
        settings = settings.model_copy(update={"workers": parsed.workers})
    lifetime = Lifetime(
        max_jobs=max_jobs,
        max_idle_sec=exit_when_idle,
        max_age_sec=None if max_hours is None else 3600 * max_hours,
        max_rss_bytes=max_rss,
        notice=notice,
    )
    code = commands.run_worker(
        settings,
        banner=lambda startup: announce(settings, startup, worker_banner(settings, startup)),
        lifetime=lifetime,
    )
    click.get_current_context().exit(code)


@click.command(short_help="Drain the worker processes of this host.")
@click.option("--self", "is_self", is_flag=True, required=True, help="Those of this host, or of this container.")
@click.option("--wait", is_flag=True, help="Wait until their jobs have ended.")
@click.option("--timeout", type=DURATION, help="How long to wait at most.")
@json_option
def drain(*, is_self: bool, wait: bool, timeout: float | None, as_json: bool) -> None:
    """Have the worker processes of this host claim no more jobs: for a hook that runs before they are stopped.

    Exits with code 1 if --timeout ended before their jobs did. `dataloader workers --drain ID` drains a single one.
    """
    from dataloader.app.runtime import commands

    drained = commands.drain_host(_load_settings(), wait=wait, timeout_sec=timeout)
    if as_json:
        click.echo(text.json_text({"workers": drained.workers, "running": drained.running}))
        click.get_current_context().exit(ExitCode.FAILURE if wait and drained.running else ExitCode.OK)
    if not drained.workers:
        click.echo("No live worker process is registered for this host.")
    elif drained.running:
        jobs = format_count(drained.running, "job")
        click.echo(f"{format_count(drained.workers, 'worker process', 'worker processes')} drained; running: {jobs}.")
        click.get_current_context().exit(ExitCode.FAILURE if wait else ExitCode.OK)
    else:
        click.echo(f"{format_count(drained.workers, 'worker process', 'worker processes')} drained; no job runs.")


@click.command(short_help="Bring the database to this version's tables.")
@click.option("--roles", is_flag=True, help="Only print the SQL of the roles for least privilege, and change nothing.")
@click.option("--uninstall", is_flag=True, help="Show what of the queue is in the schema, and remove it.")
@click.option("--yes", is_flag=True, help="With --uninstall: do not ask for confirmation.")
@click.option("--force", is_flag=True, help="With --uninstall: also while processes or jobs run.")
@json_option
def migrate(*, roles: bool, uninstall: bool, yes: bool, force: bool, as_json: bool) -> None:
    """Create the tables, or bring those of an earlier version up to date, in one transaction and under a lock.

    Doing it twice does no harm. Tables of a newer version are left alone; unless they serve this version too, it fails.

    --uninstall removes the tables with all jobs, the functions and the types of the queue, in one transaction. The
    schema, roles, and whatever else is in the schema stay. It shows them first, and asks for confirmation.
    """
    from dataloader.app.runtime import commands

    if (yes or force) and not uninstall:
        raise click.UsageError("--yes and --force belong to --uninstall")
    settings = _load_settings()
    if uninstall:
        from dataloader.app.cli.uninstall import uninstall_queue

        uninstall_queue(settings, yes=yes, force=force, as_json=as_json)
        return
    if roles:
        click.echo(commands.roles_sql(settings.schema), nl=False)
        return
    done = commands.migrate(settings)
    held = commands.preview_held_retention(settings) if done.from_version == 0 else None
    job_count = 0 if held is None else sum(held.jobs.values())
    if as_json:
        payload = {"version_before": done.from_version, "version_after": done.to_version, "steps": list(done.steps)}
        kept = {} if held is None else {"retention_held": True, "jobs_held": job_count}
        click.echo(text.json_text({**payload, **kept}))
        return
    if done.from_version == done.to_version and not done.steps:
        click.echo(f"The tables are at version {done.to_version} already; there was nothing to do.")
    else:
        before = "no tables" if done.from_version is None else f"version {done.from_version}"
        lines = [f"Found {before}; the tables are now at version {done.to_version}."]
        click.echo("\n".join([*lines, *(f"  {step}" for step in done.steps)]))
    if held is not None:
        count = f"{'more than ' if held.is_truncated else ''}{format_count(job_count, 'job')}"
        click.echo(
            f"Nothing is deleted from these tables until you ask for it. {count} and their events are older than the "
            "DL_KEEP_… settings allow.\n"
            "  To see them: dataloader prune --dry-run\n"
            "  To let workers delete them, now and from now on: set DL_RETENTION_ENABLED=true\n"
            "  To keep everything: set DL_RETENTION_ENABLED=false, or nothing"
        )


@click.command(short_help="Delete old finished jobs.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@json_option
def prune(*, dry_run: bool, as_json: bool) -> None:
    """Delete jobs that ended longer ago than the DL_KEEP_… settings say, and partitions of the events and of the logs.

    Workers do the same by themselves, unless DL_RETENTION_ENABLED is false, or is not given and the tables were
    upgraded from version 0.
    """
    from dataloader.app.runtime import commands

    swept = commands.prune(_load_settings(), dry_run=dry_run)
    if as_json:
        jobs = [{"status": status, "task": task, "jobs": n} for (status, task), n in sorted(swept.jobs.items())]
        payload = {"dry_run": dry_run, "jobs": jobs, "partitions": swept.partitions, "has_more": swept.is_truncated}
        click.echo(text.json_text(payload))
        return
    deleted, dropped = ("Would delete", "Would drop") if dry_run else ("Deleted", "Dropped")
    for (status, task), n in sorted(swept.jobs.items()):
        click.echo(f"{deleted} {format_count(n, 'job')} of {task} that ended as {status}.")
    for partition in swept.partitions:
        click.echo(f"{dropped} {partition}.")
    if swept.is_truncated:
        click.echo("There are more.")
    if not swept.jobs and not swept.partitions:
        click.echo("Nothing is older than its retention period.")


@click.command(short_help="Show every setting.")
@click.option("--docs", is_flag=True, help="Print the page that describes every variable, in Markdown.")
@click.option("--dsn", is_flag=True, help="Only print the database's connection string, WITH its password.")
@json_option
def config(*, docs: bool, dsn: bool, as_json: bool) -> None:
    """Show every setting with its value, where it comes from and its default. Secrets are masked.

    --dsn prints the connection string with its password, for other programs; for psql there is `dataloader psql`. The
    embedded server's socket exists while the service runs.
    """
    from dataloader.app.config.docs import configuration_page

    if docs and dsn:
        raise click.UsageError("--docs and --dsn print different things; use one of them")
    if docs:
        click.echo(configuration_page(), nl=False)
        return
    settings = _load_settings()
    if dsn:
        from dataloader.app.runtime import commands

        connection = commands.database_dsn(settings)
        click.echo(text.json_text({"dsn": connection}) if as_json else connection)
        return
    for warning in settings.warnings:
        click.echo(f"Note: {warning}", err=True)
    infos = [dataclasses.asdict(setting) for setting in settings.describe()]
    _SETTINGS.print({"settings": infos}, "settings", as_json=as_json)


@click.command(short_help="List the tasks that the settings' packages register.")
@json_option
def tasks(*, as_json: bool) -> None:
    """List the tasks that the packages in DL_PIPELINES and DL_TASKS register, and what cannot be loaded of them.

    It lists the code of this machine, not of a running service.
    """
    from dataloader.app.config.checks import working_folder
    from dataloader.pipelines import contract

    settings = _load_settings()
    sys.path += working_folder()  # as for the service: the packages may be in the working directory
    failures = contract.load_tasks(settings.pipelines, settings.tasks)
    items = [
        {
            "task": t.name,
            "kind": t.kind.value,
            "module": t.call.__module__,
            "requires": dict(t.options.requires),
            "python": t.options.python,
        }
        for t in contract.registry
    ]
    _TASKS.print({"tasks": items, "failures": failures}, "tasks", as_json=as_json)
    for module, trace in ({} if as_json else failures).items():
        click.echo(f"Error: {module} cannot be imported; its tasks are missing.\n{trace}", err=True)
    click.get_current_context().exit(ExitCode.FAILURE if failures else ExitCode.OK)


@click.command(short_help="Check the database and the queue.")
@click.option("--all", "everything", is_flag=True, help="Show passed checks too.")
@json_option
def doctor(*, everything: bool, as_json: bool) -> None:
    """Check the database, its server, the tables and the queue, with the service's own account.

    Each finding has its remedy. Nothing is changed. The exit code is 1 after an error, 5 after warnings only.
    """
    from dataloader.app.runtime import commands

    findings = sorted(commands.run_doctor(_load_settings()), key=lambda finding: -finding.severity)
    worst = findings[0].severity.word if findings else "ok"
    shown = [finding for finding in findings if everything or finding.severity.word != "ok"]
    if as_json:
        items = [
            {name: getattr(finding, name) for name in _FINDING_FIELDS} | {"severity": finding.severity.word}
            for finding in findings
        ]
        click.echo(text.json_text({"worst": worst, "findings": items}))
    else:
        for finding in shown:
            mark, colour = _MARKS[finding.severity.word]
            click.echo(f"{click.style(f'{mark:8}', fg=colour, bold=mark != 'ok')}{finding.message}")
            if finding.remedy:
                click.echo(f"{'':8}{click.style('→ ' + finding.remedy, dim=True)}")
        passed, them = len(findings) - len(shown), "it" if len(findings) - len(shown) == 1 else "them"
        summary = f"{format_count(passed, 'check')} found nothing wrong; --all shows {them}."
        click.echo(summary if passed else "That was all.")
    if any(finding.check == "database" for finding in findings):
        click.get_current_context().exit(ExitCode.UNAVAILABLE)
    click.get_current_context().exit({"error": ExitCode.FAILURE, "warning": ExitCode.WARNINGS}.get(worst, ExitCode.OK))


@click.command(short_help="Run a task here, in the foreground.")
@click.argument("task")
@args_options
@click.option("--lock-key", help="Wait for jobs with this key.  [default: the task's]")
@click.option("--local", is_flag=True, help="Run with a context in memory: no job, no queue, no lock.")
@click.option("--upstream", type=OBJECT, help="With --local: the results of its parents by their keys, as JSON.")
@click.option("--partition-key", "part", metavar="SLICE", help="The slice to load, such as 2026-01-31.")
@click.option("--logical-at", type=TIME, metavar="TIME", help="The nominal time it is for, as a schedule sets it.")
def run(
    *,
    task: str,
    args: dict[str, Any],
    lock_key: str | None,
    local: bool,
    upstream: dict[str, Any] | None,
    part: str | None,
    logical_at: datetime | None,
) -> None:
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
    from dataloader.app.cli.run import run_task_in_foreground

    if upstream is not None and not local:
        raise click.UsageError("--upstream needs --local: a job reads the results of its own parents")
    outcome, is_interrupted = run_task_in_foreground(
        _load_settings(),
        task,
        args,
        lock_key=lock_key,
        local=local,
        upstream=upstream,
        part=part,
        logical_at=logical_at,
    )
    if outcome.traceback:
        click.echo(outcome.traceback, err=True, nl=False)
    click.echo(f"{outcome.status}{f': {outcome.error}' if outcome.error else ''}", err=True)
    if outcome.result is not None:
        click.echo(text.json_text(outcome.result))
    code = ExitCode.INTERRUPTED if is_interrupted else ExitCode.FAILURE
    click.get_current_context().exit(ExitCode.OK if outcome.status.name == "SUCCEEDED" else code)


@click.command(
    short_help="Open psql on the service's database.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", metavar="[PSQL_OPTIONS]...", nargs=-1, type=click.UNPROCESSED)
def psql(*, arguments: tuple[str, ...]) -> None:
    """Open psql on the database of the settings, or on the embedded one, with the queue's schema first in its path.

    \b
      dataloader psql
      dataloader psql --command 'SELECT status, count(*) FROM dl_jobs GROUP BY 1'

    The password goes to psql by its environment, never by the command line, which everybody on the machine can read.
    An embedded server that does not run is started, and stopped when psql ends. The exit code is that of psql.
    """
    from dataloader.app.runtime import commands

    with (
        commands.psql_command(_load_settings()) as (program, environment),
        subprocess.Popen([program, *arguments], env=environment) as process,
    ):
        # Ctrl-C is psql's alone, and ends a statement. Ignored only now: psql would inherit that.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            code = process.wait()
        finally:
            signal.signal(signal.SIGINT, before)
    click.get_current_context().exit(code)
