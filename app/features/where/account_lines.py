"""The account of a job as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from dataloader.app.cli import text
from dataloader.app.wording import format_count, format_duration


def account_lines(answer: text.Payload) -> Iterator[str]:
    yield text.one_line(answer["summary"])
    for attempt in answer["attempts"]:
        yield ""
        yield f"Attempt {attempt['attempt']}: {', '.join(_figures(attempt, answer['currency']))}"
        kinds = [f"{text.one_line(kind['name'])} {100 * kind['share']:.0f} %" for kind in attempt["kinds"]]
        yield f"  {', '.join(kinds)}"
        for entry in attempt["entries"]:
            place = f"  [{entry['place']}]" if entry["place"] and entry["place"] not in entry["text"] else ""
            share, duration = f"{100 * entry['share']:.0f} %", format_duration(entry["sec"])
            yield text.one_line(f"  {share:>5} {duration:>12}  {entry['text']}{place}")
        for server, problem in attempt["problems"].items():
            yield text.one_line(f"  {server}: {problem}")


def _figures(attempt: text.Payload, currency: str | None) -> Iterator[str]:
    yield format_duration(attempt["wall_sec"]) + ("" if attempt["ended_at"] else ", not ended")
    if attempt["cpu_sec"] is not None:
        yield f"CPU {format_duration(attempt['cpu_sec'])}"
    if attempt["peak_memory_mb"] is not None:
        yield f"peak memory {attempt['peak_memory_mb']:.0f} MB"
    if attempt["rows"]:
        yield f"{format_count(attempt['rows'], 'row')} copied"
    if attempt["cost"] is not None:
        yield f"cost {attempt['cost']:.4f} {currency or ''}".rstrip()
