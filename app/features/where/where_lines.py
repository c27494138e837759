"""Where a job is, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from dataloader.app.cli import text
from dataloader.app.wording import format_count, format_duration

_MAX_INDENT = 10
_FOLDED_KINDS = {"standard": "of Python's library", "dataloader": "of dataloader", "library": "of packages"}


def where_lines(answer: text.Payload, *, shows_all: bool = False) -> Iterator[str]:
    yield text.one_line(answer["summary"])
    if answer["status"] != "running":
        return
    if answer["problem"] and answer["servers"]:
        yield f"No stack: {text.one_line(answer['problem'])}."
    for thread in answer["threads"]:
        yield ""
        name = "" if thread["name"] is None else f" {text.one_line(thread['name'])}"
        yield f"Thread{name}, {format_count(thread['frame_count'], 'frame')}"
        yield from _frame_lines(thread["frames"], shows_all=shows_all)
    if answer["processes"]:
        yield ""
        yield f"{format_count(answer['process_count'], 'process', 'processes')}"
        yield from map(_process_line, answer["processes"])
    for server in answer["servers"]:
        yield from _server_lines(server)


def _frame_lines(frames: Sequence[text.Payload], *, shows_all: bool) -> Iterator[str]:
    for kind, group in groupby(frames, key=lambda frame: frame["kind"]):
        of_kind = list(group)
        if kind == "task" or shows_all:
            yield from (f"  {_frame(frame)}" for frame in of_kind)
        else:
            count = format_count(sum(frame["repeated"] for frame in of_kind), "frame")
            innermost = of_kind[0]["function"]
            yield f"  … {count} {_FOLDED_KINDS.get(kind, '')}: {text.one_line(innermost)}".rstrip()


def _frame(frame: text.Payload) -> str:
    line = "" if frame["line"] is None else f":{frame['line']}"
    times = f" × {frame['repeated']}" if frame["repeated"] > 1 else ""
    return text.one_line(f"{frame['function']}  {frame['file']}{line}{times}")


def _process_line(process: text.Payload) -> str:
    percent = "" if process["cpu_percent"] is None else f", {process['cpu_percent']:.0f} % of a CPU"
    figures = f"{process['state']}{percent}, {process['cpu_sec']:.1f} s in all, {process['memory_mb']:.0f} MB"
    return f"  {'  ' * min(process['depth'], _MAX_INDENT)}{process['pid']} {text.one_line(process['name'])}: {figures}"


def _server_lines(server: text.Payload) -> Iterator[str]:
    if not server["sessions"] and not server["problem"]:
        return
    yield ""
    yield f"Sessions on {text.one_line(server['server'])}"
    if server["problem"]:
        yield f"  {text.one_line(server['problem'])}"
    for session in server["sessions"]:
        since = "" if session["state_sec"] is None else f" for {format_duration(session['state_sec'])}"
        wait = f", waits for {session['wait_event_type']}: {session['wait_event']}" if session["wait_event"] else ""
        lock = f" on {session['lock_on']}" if session["lock_on"] else ""
        pids = f", blocked by pid {', '.join(map(str, session['waits_for']))}" if session["waits_for"] else ""
        state = f"{session['state'] or 'unknown'}{since}{wait}{lock}{pids}"
        yield f"  pid {session['pid']} {text.one_line(state)}"
        if session["statement"]:
            yield f"    {text.one_line(session['statement'])}"
    for blocker in server["blockers"]:
        yield f"  {_blocker(blocker)}"


def _blocker(blocker: text.Payload) -> str:
    if blocker["pid"] == 0:
        return "blocked by a prepared transaction"
    name = blocker["application_name"] or blocker["kind"]
    who = f"job {blocker['job_id']}" if blocker["job_id"] else f"{name or 'no name'}, user {blocker['user']}"
    age = "" if blocker["transaction_sec"] is None else f", transaction {format_duration(blocker['transaction_sec'])}"
    waits = f", waits for pid {', '.join(map(str, blocker['waits_for']))}" if blocker["waits_for"] else ", the root"
    return text.one_line(f"blocked by pid {blocker['pid']} ({who}): {blocker['state'] or 'unknown'}{age}{waits}")
