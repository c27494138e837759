"""Commands about schedules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import IO, Any

import click

from dataloader.app.cli import text
from dataloader.app.cli.operations import Overrides
from dataloader.app.cli.output import Table, print_payload
from dataloader.app.cli.parsing import DURATION, TEXT_FILE, args_options, load_json, option
from dataloader.app.cli.remote import RemoteGroup, RemoteService
from dataloader.errors import ClientError, Refused
from dataloader.pipelines.schedule_fields import SCHEDULE_FIELDS


def _state(schedule: text.Payload) -> str:
    if schedule["paused_at"]:
        return f"paused by {schedule['paused_by']}" if schedule["paused_by"] else "paused"
    if schedule["orphaned_at"]:
        return "orphaned"
    return f"error: {schedule['error']}" if schedule["error"] else "on"


def _summary(schedule: text.Payload) -> str:
    has_next = schedule["next_at"] and _state(schedule) == "on"
    following = f"; next {text.format_time(schedule['next_at'])}" if has_next else ""
    return f"{schedule['name']} is {_state(schedule)}{following}."


def _changed_lines(schedule: text.Payload) -> tuple[str, ...]:
    return f"{schedule['explanation']}.", _summary(schedule)


def _format_local(local_time: str) -> str:
    return datetime.fromisoformat(local_time).isoformat(sep=" ", timespec="seconds")


def _at_offset_of(local_time: str, at: str | None) -> str | None:
    """A time of the interval as the schedule's own clock shows it at the time that it fires."""
    zone = datetime.fromisoformat(local_time).tzinfo
    return None if at is None else _format_local(datetime.fromisoformat(at).astimezone(zone).isoformat())


_SCHEDULES = Table(
    "schedules",
    "name!, task, when=explanation, next=next_at, state, source",
    "There are no schedules. `dataloader schedules create` makes one.",
    cells={
        "next": lambda s: None if s["paused_at"] else s["next_at"],
        "state": _state,
        "source": lambda s: f"{s['source']}, changed" if s["differs_from_code"] else s["source"],
    },
)
_FIRINGS = Table(
    "firings",
    "time=fire_at!, until, outcome!, job=job_id!, status=job_status, by=made_by, detail",
    "It has not fired yet.",
)
_TIMES = Table(
    "times",
    "time!, note, from=interval_start, to=interval_end, args, problem",
    "It has no next time.",
    cells={
        "time": lambda time: _format_local(time["local_time"]),
        "from": lambda time: _at_offset_of(time["local_time"], time["interval_start"]),
        "to": lambda time: _at_offset_of(time["local_time"], time["interval_end"]),
        "note": lambda time: {"moved": "moved by daylight saving", "repeated": "repeated hour"}.get(time["note"], ""),
    },
)
_BY_HAND = "kind expression args name"  # fields that --cron, --every, --arg and NAME give
_OPTIONS: Overrides = {
    "after": {"metavar": "DATASET", "help": "When this dataset is updated; may be repeated."},
    "excluded": {"names": "--exclude", "metavar": "DAY", "help": "A day without a job; may be repeated."},
    "starts_at": "--starts",
    "ends_at": "--ends",
    "lock_key": {"help": "Jobs with one key run one after the other."},
}
_CRON = option("--cron", metavar="CRON", help="Five cron fields, such as '0 6 * * *', or @daily.")
_EVERY = option("--every", type=DURATION, help="By elapsed time: 90s, 2h.")


def _show_lines(found: text.Payload) -> Iterator[str]:
    yield _summary(found)
    yield f"  when        {found['explanation'] or found['error'] or ''}"
    for field, value in sorted(found["definition"].items()):
        shown = value if isinstance(value, str) else text.json_line(value)
        in_code = f"  (in code: {text.json_line(found['declared'].get(field))})"
        yield f"  {field:<11} {shown}{in_code if field in found['differs_from_code'] else ''}"


schedules = RemoteGroup("schedules", help="Manage schedules: jobs at certain times, or when datasets are updated.")
schedules.add("list", "list_schedules", _SCHEDULES)
schedules.add("show", "get_schedule", _show_lines)
schedules.add("pause", "pause_schedule", _summary, options={"reason": "--note"}, repeatable=True)
schedules.add("resume", "resume_schedule", _summary, repeatable=True)
schedules.add(
    "run", "run_schedule", lambda made: f"{made['job_id']}{'' if made['created'] else ' (it was there already)'}"
)
schedules.add(
    "preview", "preview_schedule", _TIMES,
    options={"n": {"names": "--limit", "default": 10, "show_default": True, "help": "Show at most this many times."},
             "from": {"help": "Times after this one.  [default: now]"}},
)  # fmt: skip
schedules.add("firings", "list_firings", _FIRINGS)
schedules.add(
    "reset", "reset_schedule", _summary, arguments=("fields",), options={"fields": {"nargs": -1}}, repeatable=True
)
schedules.add("adopt", "adopt_schedule", _summary)
schedules.add("delete", "delete_schedule", "{name} is deleted.")


@schedules.command("create", operation="create_schedule", omit=_BY_HAND, options=_OPTIONS)
@click.argument("name")
@option("--paused", "is_paused", is_flag=True, help="It does not fire before it is resumed.")
@_CRON
@_EVERY
@args_options
def create_schedule(service: RemoteService, **options: Any) -> None:
    """Create a schedule NAME.

    \b
      dataloader schedules create "sales by day" --task load.sales --cron "0 6 * * *" \\
          --zone Europe/Moscow --arg 'day={interval_start:%Y-%m-%d}' --catch-up all

    Args may have the placeholders {logical_at}, {interval_start}, {interval_end} and {partition}.
    """
    fields = _definition(**options)
    if fields["task"] is None or "kind" not in fields:
        raise click.UsageError("give --task, and one of --cron, --every and --after")
    service.perform("create_schedule", _changed_lines, **fields)


@schedules.command("edit", operation="change_schedule", omit=_BY_HAND, options=_OPTIONS)
@_CRON
@_EVERY
@args_options
def edit_schedule(service: RemoteService, **options: Any) -> None:
    """Change the given options of a schedule; the others stay. Of a schedule in code they override the code."""
    service.perform("change_schedule", _changed_lines, **_definition(**options))


def _definition(
    *, cron: str | None, every: float | None, after: Sequence[str], args: Mapping[str, Any] | None, **fields: Any
) -> dict[str, Any]:
    """The fields of the options. Raises UsageError."""
    if sum((cron is not None, every is not None, bool(after))) > 1:
        raise click.UsageError("give one of --cron, --every and --after")
    if cron is not None:
        fields |= {"kind": "cron", "expression": cron}
    if every is not None:
        if every != int(every):
            raise click.UsageError("--every takes whole seconds")
        fields |= {"kind": "interval", "expression": f"{every:.0f}"}
    if after:
        fields |= {"kind": "dataset", "after": after}
    return {**fields, "args": args}


# ── as a file ───────────────────────────────────────────────────────────────────────────────────────────────────────


@schedules.command("export")
def export_schedules(service: RemoteService) -> None:
    """Print the schedules that people made as JSON, for `apply`. Those in code are not printed."""
    click.echo(text.json_text({"schedules": [*map(_definition_of, _made_by_people(service).values())]}))


def _made_by_people(service: RemoteService) -> dict[str, text.Payload]:
    found = service.send("list_schedules")["schedules"]
    return {schedule["name"]: schedule for schedule in found if schedule["source"] == "people"}


def _definition_of(schedule: text.Payload) -> dict[str, Any]:
    return {"name": schedule["name"], "task": schedule["task"], **schedule["definition"]}


@schedules.command("apply")
@click.argument("file", type=TEXT_FILE)
@option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@option("--prune", is_flag=True, help="Delete schedules of people that the file does not have.")
def apply_schedules(service: RemoteService, *, file: IO[str], dry_run: bool, prune: bool) -> None:
    """Create, replace and with --prune delete schedules, so that they are as FILE says; - is stdin.

    It is JSON as `export` prints it, or YAML where PyYAML is installed. What has not changed is left alone, and whether
    a schedule is paused is not part of it. It ends with the first schedule that is refused.
    """
    wanted, existing = _read_file(file), _made_by_people(service)
    changes: list[dict[str, str]] = []
    try:
        for name, change in _apply(service, wanted, existing, dry_run=dry_run, prune=prune):
            changes.append({"schedule": name, "change": change})
    except ClientError:
        if changes:
            _print_changes(changes)
        raise
    _print_changes(changes, "would be " if dry_run else "")


def _print_changes(changes: Sequence[Mapping[str, str]], would_be: str = "") -> None:
    lines = [f"{would_be}{change['change']}: {change['schedule']}" for change in changes]
    print_payload({"changes": changes}, *(lines or ["Nothing to change."]))


def _apply(
    service: RemoteService,
    wanted: Mapping[str, text.Payload],
    existing: Mapping[str, text.Payload],
    *,
    dry_run: bool,
    prune: bool,
) -> Iterator[tuple[str, str]]:
    """Each schedule that is changed, and how. Raises Refused, whose fields have the name of the schedule."""
    for name, definition in wanted.items():
        before = existing.get(name)
        if before is not None and _is_same(definition, before) and (dry_run or "zone" in definition):
            continue
        if not dry_run:
            try:
                made = service.send("put_schedule", name=name, body=_without_name(definition))
            except Refused as refused:
                raise _naming_schedule(refused, name) from None
            if before is not None and made["version"] == before["version"]:
                continue
        yield name, "created" if before is None else "changed"
    for name in sorted(existing.keys() - wanted.keys()) if prune else ():
        if not dry_run:
            service.send("delete_schedule", name=name)
        yield name, "deleted"


def _without_name(definition: text.Payload) -> dict[str, Any]:
    return {field: value for field, value in definition.items() if field != "name"}


def _is_same(definition: text.Payload, schedule: text.Payload) -> bool:
    """Whether a definition of the file says no other than the schedule has: a default may be left out, and a zone that
    is left out, which is that of the service, is taken for the schedule's."""
    there = _definition_of(schedule)
    return all(
        definition.get(field, spec.default) == there.get(field, spec.default)
        for field, spec in SCHEDULE_FIELDS.items()
        if field != "zone" or "zone" in definition
    ) and definition.keys() <= {"name", *SCHEDULE_FIELDS}


def _naming_schedule(refused: Refused, name: str) -> Refused:
    errors = [{"field": f"{name}.{error.field}", "message": error.message} for error in refused.errors]
    detail = "; ".join(f"{error['field']}: {error['message']}" for error in errors) or f"{name}: {refused.detail}"
    return type(refused)(refused.status, {**refused.problem, "detail": detail, "errors": errors})


def _read_file(file: IO[str]) -> dict[str, dict[str, Any]]:
    """The schedules of a file by name. Raises BadParameter."""
    content = file.read()
    try:
        payload = load_json(content)
    except (ValueError, RecursionError) as error:
        payload = _read_yaml(content, error)
    items = payload.get("schedules") if isinstance(payload, dict) else None
    if not isinstance(items, list) or not all(isinstance(item, dict) and item.get("name") for item in items):
        expected = 'expected {"schedules": [{"name": …, "task": …, …}]}, as `export` prints it'
        raise click.BadParameter(expected, param_hint="FILE")
    named = {str(item["name"]): item for item in items}
    if len(named) < len(items):
        raise click.BadParameter("two schedules have one name", param_hint="FILE")
    return named


def _read_yaml(content: str, error: Exception) -> Any:
    try:
        import yaml  # noqa: PLC0415 - no dependency of ours
    except ImportError:
        raise click.BadParameter(f"is no JSON: {error}; YAML needs PyYAML", param_hint="FILE") from None
    try:
        return yaml.safe_load(content)
    except yaml.YAMLError as yaml_error:
        raise click.BadParameter(f"is neither JSON nor YAML: {yaml_error}", param_hint="FILE") from None


COMMANDS = {"Tasks, schedules and data": (schedules,)}
