"""Commands about schedules."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import IO, Any
from urllib.parse import quote

import click

from dataloader.app.cli import text
from dataloader.app.cli.parsing import (
    DURATION,
    NOT_NEGATIVE,
    POSITIVE,
    SECONDS,
    TEXT_FILE,
    TIME,
    args_options,
    limit_option_to,
    without_none,
)
from dataloader.app.cli.service_options import RemoteGroup, RemoteService
from dataloader.app.cli.tables import Table

_PATH = "/api/v1/schedules"
CATCH_UP, OVERLAP = ("last", "all", "skip"), ("queue", "skip", "cancel", "allow")
GAP, FOLD = ("after", "skip"), ("first", "second", "both")


schedules = RemoteGroup("schedules", help="Manage schedules: jobs at certain times, or when datasets are updated.")
name_argument = click.argument("name")


def _state(schedule: text.Payload) -> str:
    if schedule["paused_at"]:
        return f"paused by {schedule['paused_by']}" if schedule["paused_by"] else "paused"
    if schedule["orphaned_at"]:
        return "orphaned"
    return f"error: {schedule['error']}" if schedule["error"] else "on"


def _format_local(local_time: str) -> str:
    return datetime.fromisoformat(local_time).isoformat(sep=" ", timespec="seconds")


def _at_offset_of(local_time: str, at: str | None) -> str | None:
    """A time of the interval as the schedule's own clock shows it at the time that it fires."""
    zone = datetime.fromisoformat(local_time).tzinfo
    return None if at is None else _format_local(datetime.fromisoformat(at).astimezone(zone).isoformat())


_SCHEDULES = Table(
    "name, task, when=explanation, next=next_at, state, source",
    {
        "next": lambda s: None if s["paused_at"] else s["next_at"],
        "state": _state,
        "source": lambda s: f"{s['source']}, changed" if s["differs_from_code"] else s["source"],
    },
    uncut="name",
    empty_message="There are no schedules. `dataloader schedules create` makes one.",
)
_FIRINGS = Table(
    "time=fire_at, until, outcome, job=job_id, status=job_status, by=made_by, detail",
    uncut="time, outcome, job",
    empty_message="It has not fired yet.",
)
_TIMES = Table(
    "time, note, from=interval_start, to=interval_end, args, problem",
    {
        "time": lambda time: _format_local(time["local_time"]),
        "from": lambda time: _at_offset_of(time["local_time"], time["interval_start"]),
        "to": lambda time: _at_offset_of(time["local_time"], time["interval_end"]),
        "note": lambda time: {"moved": "moved by daylight saving", "repeated": "repeated hour"}.get(time["note"], ""),
        "args": lambda time: "" if time["args"] is None else json.dumps(time["args"], ensure_ascii=False),
    },
    uncut="time",
    empty_message="It has no next time.",
)


def _definition_options(command: Callable[..., None]) -> Callable[..., None]:
    options = (
        click.option("--task", help="The task of its jobs."),
        click.option("--cron", metavar="CRON", help="Five cron fields, such as '0 6 * * *', or @daily."),
        click.option("--every", type=DURATION, help="By elapsed time: 90s, 2h."),
        click.option(
            "--after", multiple=True, metavar="DATASET", help="When this dataset is updated; may be repeated."
        ),
        click.option("--need", type=click.Choice(("all", "any")), help="All of these datasets, or one."),
        click.option("--zone", metavar="ZONE", help="The IANA time zone; by default the service's."),
        click.option("--queue", help="Their queue; by default the task's, else etl.default."),
        click.option("--lock-key", help="Jobs with one key run one after the other."),
        click.option("--priority", type=NOT_NEGATIVE, help="Smaller runs first."),
        click.option("--max-attempts", type=POSITIVE, help="The maximum number of attempts."),
        click.option("--catch-up", type=click.Choice(CATCH_UP), help="Of missed times: the last, all, or none."),
        click.option(
            "--catch-up-max", type=POSITIVE, metavar="N", help="Of all missed times at most so many, the latest."
        ),
        click.option("--overlap", type=click.Choice(OVERLAP), help="While an earlier job has not ended."),
        click.option("--gap", type=click.Choice(GAP), help="A time that a clock change leaves out."),
        click.option("--fold", type=click.Choice(FOLD), help="A time that a clock change repeats."),
        click.option("--jitter", "jitter_sec", type=SECONDS, help="Jobs start up to so long later."),
        click.option("--starts", "starts_at", type=TIME, metavar="TIME", help="No job before."),
        click.option("--ends", "ends_at", type=TIME, metavar="TIME", help="No job after."),
        click.option(
            "--exclude", "excluded", multiple=True, metavar="DAY", help="A day without a job; may be repeated."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return args_options(command)


def _definition(
    *,
    cron: str | None,
    every: float | None,
    after: Sequence[str],
    excluded: Sequence[str],
    args: Mapping[str, Any],
    **given: Any,
) -> dict[str, Any]:
    """The fields of the options. Raises UsageError."""
    if sum((cron is not None, every is not None, bool(after))) > 1:
        raise click.UsageError("give one of --cron, --every and --after")
    fields: dict[str, Any] = {name: _encode(value) for name, value in without_none(given).items()}
    if cron is not None:
        fields |= {"kind": "cron", "expression": cron}
    if every is not None:
        fields |= {"kind": "interval", "expression": f"{every:.0f}"}
    if after:
        fields |= {"kind": "dataset", "after": list(after)}
    if excluded:
        fields["excluded"] = list(excluded)
    if args:
        fields["args"] = dict(args)
    return fields


def _encode(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def _path(name: str, action: str = "") -> str:
    return f"{_PATH}/{quote(name, safe='')}{action and '/' + action}"


def _summary(schedule: text.Payload) -> str:
    following = (
        f"; next {text.format_time(schedule['next_at'])}" if schedule["next_at"] and _state(schedule) == "on" else ""
    )
    return f"{text.one_line(schedule['name'])} is {text.one_line(_state(schedule))}{following}."


@schedules.command("list", short_help="List the schedules.")
@click.option("--task", help="Only schedules of this task.")
def schedules_list(service: RemoteService, *, task: str | None) -> None:
    """List the schedules by name, with the next time of each."""
    service.print_list(service.get(_PATH, task=task), "schedules", _SCHEDULES)


@schedules.command("show", short_help="Show a schedule.")
@name_argument
def schedules_show(service: RemoteService, *, name: str) -> None:
    """Show what applies, in words too, and where it differs from the code."""
    found = service.get(_path(name))
    lines = [_summary(found), f"  when        {text.one_line(found['explanation'] or found['error'] or '')}"]
    for field, value in sorted(found["definition"].items()):
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        note = ""
        if field in found["differs_from_code"]:
            note = f"  (in code: {json.dumps(found['declared'].get(field), ensure_ascii=False)})"
        lines.append(f"  {field:<11} {text.one_line(shown + note)}")
    service.print_payload(found, *lines)


@schedules.command("create", short_help="Create a schedule.")
@name_argument
@_definition_options
@click.option("--paused", "is_paused", is_flag=True, help="It does not fire before it is resumed.")
def schedules_create(service: RemoteService, *, name: str, is_paused: bool, **options: Any) -> None:
    """Create a schedule NAME.

    \b
      dataloader schedules create "sales by day" --task load.sales --cron "0 6 * * *" \\
          --zone Europe/Moscow --arg 'day={interval_start:%Y-%m-%d}' --catch-up all

    Args may have the placeholders {logical_at}, {interval_start}, {interval_end} and {partition}.
    """
    body = {"name": name, "is_paused": is_paused, **_definition(**options)}
    if "task" not in body or "kind" not in body:
        raise click.UsageError("give --task, and one of --cron, --every and --after")
    made = service.post(_PATH, body)
    service.print_warnings(made)
    service.print_payload(made, f"{text.one_line(made['explanation'])}.", _summary(made))


@schedules.command("edit", short_help="Change a schedule.")
@name_argument
@_definition_options
def schedules_edit(service: RemoteService, *, name: str, **options: Any) -> None:
    """Change the given options of a schedule; the others stay. Of a schedule in code they override the code."""
    changed = service.patch(_path(name), _definition(**options))
    service.print_warnings(changed)
    service.print_payload(changed, f"{text.one_line(changed['explanation'])}.", _summary(changed))


@schedules.command("pause", short_help="Pause a schedule.")
@name_argument
@click.option("--note", "reason", help="Why, shown with the schedule.")
def schedules_pause(service: RemoteService, *, name: str, reason: str | None) -> None:
    """Pause a schedule: it makes no jobs. Those it has made are not affected."""
    paused = service.post(_path(name, "pause"), without_none({"reason": reason}), repeatable=True)
    service.print_payload(paused, _summary(paused))


@schedules.command("resume", short_help="Resume a schedule.")
@name_argument
@click.option("--catch-up", is_flag=True, help="Treat the times of the pause as missed ones; else they are skipped.")
def schedules_resume(service: RemoteService, *, name: str, catch_up: bool) -> None:
    """Resume a paused schedule: it fires from now on."""
    resumed = service.post(_path(name, "resume") + ("?catch_up=true" if catch_up else ""), repeatable=True)
    service.print_payload(resumed, _summary(resumed))


@schedules.command("run", short_help="Make a job of a schedule now.")
@name_argument
@click.option("--at", type=TIME, metavar="TIME", help="For this time; by default for now.")
@click.option("--again", is_flag=True, help="Also if the time has fired.")
def schedules_run(service: RemoteService, *, name: str, at: datetime | None, again: bool) -> None:
    """Make a job of a schedule now, for the present or for another time, also while it is paused."""
    made = service.post(_path(name, "run"), without_none({"at": at and at.isoformat(), "again": again}))
    service.print_payload(made, f"{made['job_id']}{'' if made['created'] else ' (it was there already)'}")


@schedules.command("preview", short_help="Show the next times of a schedule.")
@name_argument
@click.option(
    "--limit", type=click.IntRange(1, 100), default=10, show_default=True, help="Show at most this many times."
)
@click.option("--from", "begin", type=TIME, metavar="TIME", help="Times after this one; by default now.")
def schedules_preview(service: RemoteService, *, name: str, limit: int, begin: datetime | None) -> None:
    """Show the next times of a schedule, with the effect of daylight saving, and the args of their jobs."""
    shown = service.get(_path(name, "preview"), n=limit, **without_none({"from": begin and begin.isoformat()}))
    service.print_list(shown, "times", _TIMES)


@schedules.command("firings", short_help="List what became of each time.")
@name_argument
@click.option("--before", type=TIME, metavar="TIME", help="Only earlier times.")
@limit_option_to(500)
def schedules_firings(service: RemoteService, *, name: str, before: datetime | None, limit: int) -> None:
    """List what became of each time of a schedule, the latest first."""
    query = without_none({"before": before and before.isoformat(), "limit": limit})
    service.print_list(service.get(_path(name, "firings"), **query), "firings", _FIRINGS)


@schedules.command("reset", short_help="Go back to what the code declares.")
@name_argument
@click.argument("fields", nargs=-1)
def schedules_reset(service: RemoteService, *, name: str, fields: tuple[str, ...]) -> None:
    """Undo what people changed of a schedule in code: these FIELDS, or all."""
    found = service.post(_path(name, "reset"), {"fields": list(fields) or None}, repeatable=True)
    service.print_payload(found, _summary(found))


@schedules.command("adopt", short_help="Keep a schedule that no code declares any more.")
@name_argument
def schedules_adopt(service: RemoteService, *, name: str) -> None:
    """Make an orphaned schedule one of people: it fires again."""
    adopted = service.post(_path(name, "adopt"))
    service.print_payload(adopted, _summary(adopted))


@schedules.command("delete", short_help="Delete a schedule.")
@name_argument
def schedules_delete(service: RemoteService, *, name: str) -> None:
    """Delete a schedule with its firings. Its jobs stay."""
    service.print_payload(service.delete(_path(name)), f"{text.one_line(name)} is deleted.")


@schedules.command("export", short_help="Print the schedules of people as JSON.")
def schedules_export(service: RemoteService) -> None:
    """Print the schedules that people made as JSON, for `apply`. Those in code are not printed."""
    found = service.get(_PATH)["schedules"]
    exported = [_exported(schedule) for schedule in found if schedule["source"] == "people"]
    click.echo(text.json_text({"schedules": exported}))


@schedules.command("apply", short_help="Create and change schedules as a file says.")
@click.argument("file", type=TEXT_FILE)
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.option("--prune", is_flag=True, help="Delete schedules of people that the file does not have.")
def schedules_apply(service: RemoteService, *, file: IO[str], dry_run: bool, prune: bool) -> None:
    """Create, replace and with --prune delete schedules, so that they are as FILE says; - is stdin.

    It is JSON as `export` prints it, or YAML where PyYAML is installed. What has not changed is left alone, and whether
    a schedule is paused is not part of it.
    """
    wanted = _read_file(file)
    existing = {s["name"]: _exported(s) for s in service.get(_PATH)["schedules"] if s["source"] == "people"}
    changes: list[dict[str, str]] = []
    for name, definition in wanted.items():
        if existing.get(name) == definition:
            continue
        changes.append({"schedule": name, "change": "changed" if name in existing else "created"})
        if not dry_run:
            body = {k: v for k, v in definition.items() if k != "name"}
            service.print_warnings(service.client.request("PUT", _path(name), body=body, repeatable=True))
    for name in existing.keys() - wanted.keys() if prune else ():
        changes.append({"schedule": name, "change": "deleted"})
        if not dry_run:
            service.delete(_path(name))
    lines = [f"{'would be ' if dry_run else ''}{c['change']}: {text.one_line(c['schedule'])}" for c in changes]
    service.print_payload({"changes": changes}, *(lines or ["Nothing to change."]))


def _exported(schedule: text.Payload) -> dict[str, Any]:
    return {"name": schedule["name"], "task": schedule["task"], **schedule["definition"]}


def _read_file(file: IO[str]) -> dict[str, dict[str, Any]]:
    """The schedules of a file by name. Raises BadParameter."""
    content = file.read()
    try:
        payload = json.loads(content)
    except ValueError as error:
        payload = _read_yaml(content, error)
    items = payload.get("schedules") if isinstance(payload, dict) else None
    if not isinstance(items, list) or not all(isinstance(item, dict) and item.get("name") for item in items):
        raise click.BadParameter('expected {"schedules": [{"name": …, "task": …, …}]}, as `export` prints it')
    named = {str(item["name"]): item for item in items}
    if len(named) < len(items):
        raise click.BadParameter("two schedules have one name")
    return named


def _read_yaml(content: str, error: ValueError) -> Any:
    try:
        import yaml  # noqa: PLC0415 - no dependency of ours
    except ImportError:
        raise click.BadParameter(f"is no JSON: {error}; YAML needs PyYAML") from None
    try:
        return yaml.safe_load(content)
    except yaml.YAMLError as yaml_error:
        raise click.BadParameter(f"is neither JSON nor YAML: {yaml_error}") from None
