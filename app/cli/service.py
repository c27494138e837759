"""Commands that run in this process: serve, worker, migrate, prune, config, tasks. Each imports what it needs."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.cli import text
from app.cli.banner import serve_banner, worker_banner
from app.cli.exit_codes import ExitCode
from app.cli.service_options import json_option, option_type, print_table
from app.wording import format_count

if TYPE_CHECKING:
    from app.config import QueueWorkers, Settings
    from app.runtime.startup import Startup


def parse_queue(raw: str) -> tuple[str, int]:
    """Parse QUEUE:THREADS."""
    queue, _, threads = raw.rpartition(":")
    if not queue or not threads.isdecimal():
        raise ValueError(f"{raw!r} is not QUEUE:THREADS, such as etl.default:2")
    return queue, int(threads)


@click.command(short_help="Run the API, the dashboard and the workers.")
@click.option("--host", help="The address to listen on.  [APP_HOST]")
@click.option("--port", type=click.IntRange(1, 65535), help="The port to listen on.  [APP_PORT]")
@click.option("--no-workers", is_flag=True, help="Only answer HTTP; jobs are run by `dataloader worker` elsewhere.")
def serve(*, host: str | None, port: int | None, no_workers: bool) -> None:
    """Run the API, the dashboard and the workers until Ctrl-C or SIGTERM.

    Without DL_DB_DSN or PG_HOST it starts an embedded PostgreSQL, and keeps its data in DL_DATA_DIR.
    """
    from app.runtime import commands  # noqa: PLC0415 - Flask, pydantic and the driver are not for client commands

    settings = _load_settings(loads_pipelines=True, app_host=host, app_port=port)

    def banner(startup: Startup) -> None:
        click.echo(serve_banner(settings, startup, workers=not no_workers))

    click.get_current_context().exit(commands.serve(settings, workers=not no_workers, banner=banner))


@click.command(short_help="Run workers only.")
@click.option(
    "--queue",
    "queues",
    type=option_type(parse_queue),
    multiple=True,
    metavar="QUEUE:THREADS",
    help="A queue to work on and its number of threads; may be repeated.  [WORKERS_JSON]",
)
@click.option("--workers-json", metavar="JSON", help="Override WORKERS_JSON.")
def worker(*, queues: tuple[tuple[str, int], ...], workers_json: str | None) -> None:
    """Run workers only, without HTTP, until Ctrl-C or SIGTERM."""
    if queues and workers_json is not None:
        raise click.UsageError("--queue and --workers-json set the same thing; use one of them")
    if queues:
        workers_json = json.dumps([{"queue": queue, "concurrency": threads} for queue, threads in queues])
    from app.runtime import commands  # noqa: PLC0415 - as above

    workers = None if workers_json is None else _parse_queue_workers(workers_json)
    settings = _load_settings(loads_pipelines=True, workers=workers)

    def banner(startup: Startup) -> None:
        click.echo(worker_banner(settings, startup))

    click.get_current_context().exit(commands.run_worker(settings, banner=banner))


@click.command(short_help="Bring the database to this version's tables.")
@click.option("--roles", is_flag=True, help="Only print the SQL of the roles for least privilege, and change nothing.")
@json_option
def migrate(*, roles: bool, as_json: bool) -> None:
    """Create the tables, or bring those of an earlier version up to date, in one transaction and under a lock.

    Doing it twice does no harm. Tables of a newer version are left alone; unless they serve this version too, it fails.
    """
    from app.runtime import commands  # noqa: PLC0415 - as above

    if roles:
        click.echo(commands.roles_sql(_load_settings().schema), nl=False)
        return
    settings = _load_settings()
    done = commands.migrate(settings)
    held = commands.preview_held_retention(settings) if done.from_version == 0 else None
    if as_json:
        kept = {} if held is None else {"retention_held": True, "jobs_held": sum(held.jobs.values())}
        click.echo(
            text.json_text({"found": done.from_version, "now": done.to_version, "steps": list(done.steps), **kept})
        )
        return
    before = "no tables" if done.from_version is None else f"version {done.from_version}"
    if done.from_version == done.to_version and not done.steps:
        click.echo(f"The tables are at version {done.to_version} already; there was nothing to do.")
    else:
        done_now = f"Found {before}; the tables are now at version {done.to_version}."
        click.echo("\n".join([done_now, *(f"  {step}" for step in done.steps)]))
    if held is not None:
        click.echo(_held_retention_text(sum(held.jobs.values()), is_truncated=held.is_truncated))


def _held_retention_text(job_count: int, *, is_truncated: bool) -> str:
    """What to print after an upgrade from version 0: what retention would delete, and how to enable or forbid it."""
    count = f"{'more than ' if is_truncated else ''}{job_count:,} {'job' if job_count == 1 else 'jobs'}"
    return (
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
    from app.runtime import commands  # noqa: PLC0415 - as above

    swept = commands.prune(_load_settings(), dry_run=dry_run)
    if as_json:
        jobs = [{"status": status, "task": task, "jobs": n} for (status, task), n in sorted(swept.jobs.items())]
        click.echo(
            text.json_text({"dry_run": dry_run, "jobs": jobs, "parts": swept.partitions, "more": swept.is_truncated})
        )
        return
    did = "Would delete" if dry_run else "Deleted"
    for (status, task), n in sorted(swept.jobs.items()):
        click.echo(f"{did} {format_count(n, 'job')} of {task} that ended as {status}.")
    for part in swept.partitions:
        click.echo(f"{'Would drop' if dry_run else 'Dropped'} {part}.")
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

    --dsn shows what is masked elsewhere, for a program that is to reach the same database; `dataloader psql` needs no
    such thing. The embedded server's socket is there while the service runs.
    """
    from app.config import docs as pages  # noqa: PLC0415 - as above

    if docs and dsn:
        raise click.UsageError("--docs and --dsn print different things; use one of them")
    if dsn:
        from app.runtime import commands  # noqa: PLC0415 - as above

        found = commands.database_dsn(_load_settings())
        click.echo(text.json_text({"dsn": found}) if as_json else found)
        return
    if docs:
        click.echo(pages.configuration_page(), nl=False)
        return
    settings = _load_settings()
    for warning in settings.warnings:
        click.echo(f"Note: {warning}", err=True)
    variables = [dataclasses.asdict(setting) for setting in settings.describe()]
    if as_json:
        click.echo(text.json_text({"settings": variables}))
    else:
        columns = {name: name for name in ("variable", "value", "source", "default")}
        print_table(columns, variables, uncut=("variable", "source"))


@click.command(short_help="List the tasks that the settings' packages register.")
@json_option
def tasks(*, as_json: bool) -> None:
    """List the tasks that the packages in DL_PIPELINES and DL_TASKS register, and what cannot be loaded of them.

    It lists the code of this machine, not of a running service.
    """
    from pipelines import contract  # noqa: PLC0415 - its tasks may import anything

    settings = _load_settings()
    sys.path.append(str(Path.cwd()))  # as for the service: the packages may be in the working directory
    failures = contract.load_tasks(settings.pipelines, settings.tasks)
    items = [{"task": t.name, "kind": t.kind.value, "module": t.call.__module__} for t in contract.registry]
    if as_json:
        click.echo(text.json_text({"tasks": items, "failures": failures}))
    elif items:
        print_table({name: name for name in items[0]}, items)
    for module, trace in ({} if as_json else failures).items():
        click.echo(f"Error: {module} cannot be imported; its tasks are missing.\n{trace}", err=True)
    click.get_current_context().exit(ExitCode.FAILURE if failures else ExitCode.OK)


def _load_settings(*, loads_pipelines: bool = False, **overrides: Any) -> Settings:
    """Load the settings of the environment; options of the command line override them."""
    from app.config import load_settings  # noqa: PLC0415 - as above

    settings = load_settings(loads_pipelines=loads_pipelines)
    return settings.model_copy(update={name: value for name, value in overrides.items() if value is not None})


def _parse_queue_workers(raw: str) -> tuple[QueueWorkers, ...]:
    from app.config.loading import parse_settings  # noqa: PLC0415 - as above

    settings, errors = parse_settings({"WORKERS_JSON": raw})
    if errors:
        raise click.UsageError(f"{raw} is not what --queue or --workers-json can be: {errors[0].remedy}")
    return settings.workers
