"""Replays what a campaign recorded of schedules, backfills, slices, datasets and offloads, one transaction at a time.

These are no part of the explored model. Each rule is about what one transaction may write, in the state that those
before it have led to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.model.record import Record, TraceStep, seconds
from tests.model.rows import FINAL

_LIVE = ("queued", "running")
Refusals = Iterator[tuple[str, str]]
Rows = Mapping[str, Sequence[Mapping[str, Any]]]  # by the kind of step


def check_capabilities(record: Record) -> Refusals:
    replay = _Replay()
    for _, steps in _transactions(record.steps):
        yield from replay.apply(steps)
    yield from replay.finish()
    for execution in record.executions:
        if execution.had_intent is False:
            yield execution.name, "work was started before its intent was committed"
        if execution.starts > 1 or execution.state == "running":
            yield execution.name, f"work was started {execution.starts} times, and is {execution.state} at the end"


def _transactions(steps: Sequence[TraceStep]) -> list[tuple[int, list[TraceStep]]]:
    """In the order of their last steps: what waited for a transaction was written after it."""
    by_xid: dict[int, list[TraceStep]] = defaultdict(list)
    for step in steps:
        by_xid[step.xid].append(step)
    return sorted(by_xid.items(), key=lambda item: item[1][-1].n)


class _Replay:
    def __init__(self) -> None:
        self._jobs: dict[str, Mapping[str, Any]] = {}
        self._live: dict[str, dict[str, str]] = {"schedule": {}, "live_key": {}}  # of each: the job that has not ended
        self._schedules: dict[str, Mapping[str, Any]] = {}
        self._fired: dict[tuple[str, str], str | None] = {}  # schedule and nominal time -> job
        self._backfills: dict[str, Mapping[str, Any]] = {}
        self._cursors: dict[str, set[str]] = defaultdict(set)
        self._slices: dict[tuple[str, str], str] = {}  # its job
        self._offloads: dict[str, dict[int, Mapping[str, Any]]] = defaultdict(dict)  # by job, then number
        self._updates: dict[int, tuple[str, str]] = {}  # schedule and dataset

    def apply(self, steps: Sequence[TraceStep]) -> Refusals:
        rows: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for step in steps:
            rows[step.kind].append(step.data)
        if rows.keys() <= {"event", "beat", "limit", "effect"}:
            return
        yield from self._fire(rows)
        yield from self._make_backfills(rows)
        for row in rows["row"]:
            yield from self._change_job(row, rows)
        for row in rows["dl_slices"]:
            self._slices[row["task"], row["partition_key"]] = row["job_id"]
        yield from self._submit(rows)
        yield from self._update_datasets(rows)

    # ── schedules ───────────────────────────────────────────────────────────────────────────────────────────────

    def _fire(self, rows: Rows) -> Refusals:
        for row in rows.get("dl_schedules", ()):
            former = self._schedules.get(row["schedule_id"])
            self._schedules[row["schedule_id"]] = row
            if former is None or row["last_at"] == former["last_at"] or row["last_at"] is None:
                continue
            if row["paused_at"] is not None and former["paused_at"] is not None:
                yield row["name"], f"the paused schedule {row['name']!r} has accounted for {row['last_at']}"
            firings = [firing for firing in rows.get("dl_firings", ()) if firing["schedule_id"] == row["schedule_id"]]
            missing = _unaccounted(row, former, firings)
            if missing:
                yield (
                    row["name"],
                    f"the schedule {row['name']!r} has passed over {len(missing)} times, {missing[0]} first",
                )

        for firing in rows.get("dl_firings", ()):
            time = (firing["schedule_id"], firing["fire_at"])
            former_job = self._fired.get(time)
            if former_job and firing["job_id"] != former_job:
                yield firing["job_id"] or former_job, f"the time {firing['fire_at']} of job {former_job} is fired again"
            self._fired[time] = firing["job_id"]

    # ── jobs of schedules, backfills and slices ─────────────────────────────────────────────────────────────────

    def _change_job(self, row: Mapping[str, Any], rows: Rows) -> Refusals:
        job, former = row["job"], self._jobs.get(row["job"])
        self._jobs[job] = row
        if former is None and row["schedule"] and all(each["job_id"] != job for each in rows.get("dl_firings", ())):
            yield job, "a job of a schedule is made, and no firing of the transaction names it"
        overlaps = _definition(self._schedules.get(row["schedule"], {})).get("overlap") != "skip"
        for name in ("live_key",) if overlaps else ("live_key", "schedule"):
            yield from self._follow_live(name, row)
        yield from self._end_slice(row, former, rows)

    def _end_slice(self, row: Mapping[str, Any], former: Mapping[str, Any] | None, rows: Rows) -> Refusals:
        job, part = row["job"], (row["task"], row["slice"])
        is_end = row["status"] in FINAL and former is not None and former["status"] != row["status"]
        is_of_slice = row["live_key"] == "slice:" + ":".join(part) and self._slices.get(part) == job
        states = [each["state"] for each in rows.get("dl_slices", ()) if each["job_id"] == job]
        if is_end and is_of_slice and row["status"] not in states:
            yield job, f"it ends as {row['status']}, and its slice is not changed in the same transaction"

    def _follow_live(self, name: str, row: Mapping[str, Any]) -> Refusals:
        job, value = row["job"], row[name]
        if not value:
            return
        other = self._live[name].get(value)
        if row["status"] not in _LIVE:
            if other == job:
                del self._live[name][value]
        elif other not in (None, job):
            yield job, f"it is queued while job {other} with the same {name} has not ended"
        else:
            self._live[name][value] = job

    def _make_backfills(self, rows: Rows) -> Refusals:
        for row in rows.get("dl_backfills", ()):
            former = self._backfills.get(row["backfill_id"])
            self._backfills[row["backfill_id"]] = row
            cursors = self._cursors[row["backfill_id"]]
            if row["cursor"] is None:  # it is new, or a person starts it again
                cursors.clear()
            elif former and (row["made"], row["skipped"]) != (former["made"], former["skipped"]):
                if former["state"] != "open":
                    yield row["backfill_id"], f"jobs of a backfill are made that is {former['state']}"
                if row["cursor"] in cursors:
                    yield row["backfill_id"], f"the slices up to {row['cursor']} are asked for again"
                cursors.add(row["cursor"])

    # ── offloads, datasets ──────────────────────────────────────────────────────────────────────────────────────

    def _submit(self, rows: Rows) -> Refusals:
        for row in rows.get("dl_offloads", ()):
            of_job = self._offloads[row["job_id"]]
            if row["op"] == "INSERT":
                open_ones = [
                    n for n, each in of_job.items() if each["outcome"] in (None, "succeeded") and n < row["number"]
                ]
                if open_ones:
                    yield row["job_id"], f"submission {row['number']} begins, and {open_ones[0]} has not failed"
            of_job[row["number"]] = row

    def _update_datasets(self, rows: Rows) -> Refusals:
        updates = rows.get("dl_dataset_updates", ())
        self._updates |= {
            row["update_id"]: (row["schedule_id"], row["dataset"]) for row in updates if row["op"] == "INSERT"
        }
        for event in rows.get("dl_dataset_events", ()):
            for schedule_id, schedule in self._schedules.items():
                follows = event["kind"] == "produced" and event["dataset"] in (_definition(schedule).get("after") or ())
                if follows and (schedule_id, event["dataset"]) not in self._updates.values():
                    name = schedule["name"]
                    yield event["job_id"], f"it updates a dataset, and the schedule {name!r} does not learn of it"
        for row in updates:
            if row["op"] == "DELETE":
                self._updates.pop(row["update_id"], None)

    def finish(self) -> Refusals:
        for job, offloads in self._offloads.items():
            yield from ((job, f"{row['name']} has no end") for row in offloads.values() if row["outcome"] is None)
            has_succeeded = self._jobs.get(job, {}).get("status") == "succeeded"
            for number in sorted(offloads)[:-1] if has_succeeded else ():
                if offloads[number]["outcome"] != "failed":
                    yield job, f"it submitted its work again, and {offloads[number]['name']} had not failed"


def _definition(schedule: Mapping[str, Any]) -> dict[str, Any]:
    return {**(schedule.get("declared") or {}), **(schedule.get("overrides") or {})}


def _unaccounted(row: Mapping[str, Any], former: Mapping[str, Any], firings: Sequence[Mapping[str, Any]]) -> list[int]:
    """The nominal times between two of `last_at` that no firing has. A cron expression is one of each minute here."""
    definition = _definition(row)
    if definition.get("kind") == "dataset" or definition != _definition(former):
        return []
    every = int(definition["expression"]) if definition.get("kind") == "interval" else 60
    begin = seconds(former["last_at"] or former["created_at"])
    spans = [(seconds(firing["fire_at"]), seconds(firing["until"] or firing["fire_at"])) for firing in firings]
    times = range((int(begin // every) + 1) * every, int(seconds(row["last_at"])) + 1, every)
    return [time for time in times if not any(first <= time <= last for first, last in spans)]
