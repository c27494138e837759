"""serve, worker, migrate, config, tasks: what runs in this process. Each loads what it needs when it is called."""

from __future__ import annotations

import dataclasses
import json
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.cli import text
from app.cli.banner import serve_banner, worker_banner
from app.cli.exits import Exit
from app.cli.service import json_option, show_table, usage
from app.wording import counted

if TYPE_CHECKING:
    from app.config import QueueWorkers, Settings
    from app.host.startup import Startup


def parse_queue(told: str) -> tuple[str, int]:
    """QUEUE:THREADS"""
    queue, _, threads = told.rpartition(":")
    if not queue or not threads.isdecimal():
        raise ValueError(f"{told!r} is not QUEUE:THREADS, such as etl.default:2")
    return queue, int(threads)


@click.command(short_help="Run the API, the dashboard and the workers.")
@click.option("--host", help="The address to listen on.  [APP_HOST]")
@click.option("--port", type=click.IntRange(1, 65535), help="The port to listen on.  [APP_PORT]")
@click.option("--no-workers", is_flag=True, help="Only answer HTTP; jobs are run by `dataloader worker` elsewhere.")
def serve(*, host: str | None, port: int | None, no_workers: bool) -> None:
    """Run the API, the dashboard and the workers until Ctrl-C or SIGTERM.

    Without DL_DB_DSN or PG_HOST it starts an embedded PostgreSQL, and keeps its data in DL_DATA_DIR.
    """
    from app import wiring  # noqa: PLC0415 - Flask, pydantic and the driver are not for client commands

    settings = _settings(loads_pipelines=True, app_host=host, app_port=port)

    def banner(startup: Startup) -> None:
        click.echo(serve_banner(settings, startup, workers=not no_workers))

    click.get_current_context().exit(wiring.serve(settings, workers=not no_workers, banner=banner))


@click.command(short_help="Run workers only.")
@click.option(
    "--queue",
    "queues",
    type=usage(parse_queue),
    multiple=True,
    metavar="QUEUE:THREADS",
    help="A queue to work on and its number of threads; may be repeated.  [WORKERS_JSON]",
)
@click.option("--workers-json", metavar="JSON", help="The same as WORKERS_JSON, which it replaces.")
def worker(*, queues: tuple[tuple[str, int], ...], workers_json: str | None) -> None:
    """Run workers only, without HTTP, until Ctrl-C or SIGTERM."""
    if queues and workers_json is not None:
        raise click.UsageError("--queue and --workers-json say the same thing; use one of them")
    if queues:
        workers_json = json.dumps([{"queue": queue, "concurrency": threads} for queue, threads in queues])
    from app import wiring  # noqa: PLC0415 - as above

    workers = None if workers_json is None else _queue_workers(workers_json)
    settings = _settings(loads_pipelines=True, workers=workers)

    def banner(startup: Startup) -> None:
        click.echo(worker_banner(settings, startup))

    click.get_current_context().exit(wiring.work(settings, banner=banner))


@click.command(short_help="Bring the database to this version's tables.")
@click.option("--roles", is_flag=True, help="Only print the SQL of the roles for least privilege, and change nothing.")
@json_option
def migrate(*, roles: bool, as_json: bool) -> None:
    """Create the tables, or bring those of an earlier version up to date, in one transaction and under a lock.

    Doing it twice does no harm. Tables of a newer version are left alone; unless they serve this version too, it fails.
    """
    from app import wiring  # noqa: PLC0415 - as above

    if roles:
        click.echo(wiring.roles_text(_settings().schema), nl=False)
        return
    settings = _settings()
    done = wiring.migrate(settings)
    held = wiring.preview_held(settings) if done.found == 0 else None
    if as_json:
        kept = {} if held is None else {"retention_held": True, "jobs_held": sum(held.jobs.values())}
        click.echo(text.json_text({"found": done.found, "now": done.now, "steps": list(done.steps), **kept}))
        return
    before = "no tables" if done.found is None else f"version {done.found}"
    if done.found == done.now and not done.steps:
        click.echo(f"The tables are at version {done.now} already; there was nothing to do.")
    else:
        done_now = f"Found {before}; the tables are now at version {done.now}."
        click.echo("\n".join([done_now, *(f"  {step}" for step in done.steps)]))
    if held is not None:
        click.echo(_held_text(sum(held.jobs.values()), more=held.more))


def _held_text(jobs: int, *, more: bool) -> str:
    """After an upgrade from tables without versions: what would be deleted, and how to start or forbid that."""
    count = f"{'more than ' if more else ''}{jobs:,} {'job' if jobs == 1 else 'jobs'}"
    return (
        f"Nothing is deleted from these tables until you ask for it. {count} and their events are older than the "
        "DL_KEEP_… settings allow.\n"
        "  To see them: dataloader prune --dry-run\n"
        "  To let workers delete them, now and from now on: set DL_RETENTION=true\n"
        "  To keep everything: set DL_RETENTION=false, or nothing"
    )


@click.command(short_help="Delete what ended long ago.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@json_option
def prune(*, dry_run: bool, as_json: bool) -> None:
    """Delete jobs that ended longer ago than the DL_KEEP_… settings say, and parts of the journal and of the logs.

    Workers do the same by themselves, unless DL_RETENTION is false, or is not given and the tables were upgraded from
    version 0. Idempotency keys of deleted jobs are kept.
    """
    from app import wiring  # noqa: PLC0415 - as above

    swept = wiring.prune(_settings(), dry=dry_run, told=lambda _: None)
    if as_json:
        jobs = [{"status": status, "task": task, "jobs": n} for (status, task), n in sorted(swept.jobs.items())]
        click.echo(text.json_text({"dry_run": dry_run, "jobs": jobs, "parts": swept.parts, "more": swept.more}))
        return
    did = "Would delete" if dry_run else "Deleted"
    for (status, task), n in sorted(swept.jobs.items()):
        click.echo(f"{did} {counted(n, 'job')} of {task} that ended as {status}.")
    for part in swept.parts:
        click.echo(f"{'Would drop' if dry_run else 'Dropped'} {part}.")
    if swept.more:
        click.echo("There are more.")
    if not swept.jobs and not swept.parts:
        click.echo("Nothing is older than it may be.")


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
        from app import wiring  # noqa: PLC0415 - as above

        found = wiring.dsn(_settings())
        click.echo(text.json_text({"dsn": found}) if as_json else found)
        return
    if docs:
        click.echo(pages.configuration(), nl=False)
        return
    settings = _settings()
    for warning in settings.warnings:
        click.echo(f"Note: {warning}", err=True)
    knobs = settings.describe()
    if as_json:
        click.echo(text.json_text({"settings": [dataclasses.asdict(knob) for knob in knobs]}))
    else:
        rows = [(knob.variable, knob.value, knob.source, knob.default) for knob in knobs]
        show_table(("variable", "value", "source", "default"), rows, whole=("variable", "source"))


@click.command(short_help="List the tasks that the settings' packages register.")
@json_option
def tasks(*, as_json: bool) -> None:
    """List the tasks that the packages in DL_PIPELINES and DL_TASKS register, and what cannot be loaded of them.

    This looks at the code that is here, not at a running service.
    """
    from pipelines import contract  # noqa: PLC0415 - its tasks may import anything

    settings = _settings()
    sys.path.append(str(Path.cwd()))  # as for the service: the packages may stand beside the process
    loading = contract.load(settings.pipelines, settings.tasks)
    known = list(contract.registry)
    if as_json:
        click.echo(
            text.json_text(
                {
                    "tasks": [{"task": t.name, "kind": t.kind.value, "module": t.call.__module__} for t in known],
                    "failures": dict(loading.failures),
                }
            )
        )
    elif known:
        show_table(("task", "kind", "module"), [(t.name, t.kind.value, t.call.__module__) for t in known])
    for module, trace in ({} if as_json else loading.failures).items():
        click.echo(f"Error: {module} cannot be imported; its tasks are missing.\n{trace}", err=True)
    click.get_current_context().exit(Exit.NOT_DONE if loading.failures else Exit.OK)


def version() -> str:
    try:
        return metadata.version("dataloader")
    except metadata.PackageNotFoundError:
        return "(not installed: run from its sources)"


def _settings(*, loads_pipelines: bool = False, **given: Any) -> Settings:
    """The settings of the environment, with what the command line says over them."""
    from app.config import Settings  # noqa: PLC0415 - as above

    settings = Settings.load(loads_pipelines=loads_pipelines)
    return settings.model_copy(update={name: value for name, value in given.items() if value is not None})


def _queue_workers(told: str) -> tuple[QueueWorkers, ...]:
    from app.config import values  # noqa: PLC0415 - as above

    try:
        return values.queue_workers(told)
    except ValueError as error:
        raise click.UsageError(f"{told} is not what --queue or --workers-json can be: {error}") from error
