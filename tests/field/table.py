"""The field matrix as a table: each test leaves its row in build/field, `python -m tests.field.table` prints them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from tests.field.first_hour import STEPS, StepResult
from tests.field.places import PLACES, Place
from tests.support.processes import ROOT

ROWS = ROOT / "build" / "field"
PAGE = ROOT / "docs" / "field-matrix.md"
BEGIN, END = "<!-- last run -->\n", "<!-- /last run -->"


def write_row(place: Place, outcomes: Sequence[StepResult], *, skipped: str = "") -> None:
    ROWS.mkdir(parents=True, exist_ok=True)
    row = {"title": place.title, "skipped": skipped, "outcomes": [asdict(one) for one in outcomes]}
    (ROWS / f"{place.name}.json").write_text(json.dumps(row), encoding="utf-8")


def table() -> str:
    """Return the rows of the last run in Markdown: seconds of each step, `FAILED`, or why a place was left out."""
    names = [name for name, *_ in STEPS]
    lines = [f"| place | {' | '.join(names)} | all |", f"|---|{'---|' * (len(names) + 1)}"]
    for name in PLACES:
        file = ROWS / f"{name}.json"
        if not file.exists():
            continue
        row = json.loads(file.read_text(encoding="utf-8"))
        if row["skipped"]:
            lines.append(f"| `{name}`: {row['title']} | *left out: {row['skipped']}* |{' |' * len(names)}")
            continue
        found = {one["step"]: one for one in row["outcomes"]}
        cells = [_cell(found.get(step)) for step in names]
        seconds = sum(one["seconds"] for one in row["outcomes"])
        lines.append(f"| `{name}`: {row['title']} | {' | '.join(cells)} | {seconds:.0f} |")
    return "\n".join(lines) + "\n"


def _cell(outcome: dict[str, str | float] | None) -> str:
    if outcome is None:
        return "–"
    return "FAILED" if outcome["error"] else f"{outcome['seconds']:.1f}"


def main() -> None:
    from tests.field import database_places, host_places, units  # noqa: F401 - they add their places to the list

    text = table()
    sys.stdout.write(text)
    if "--docs" in sys.argv:
        page = PAGE.read_text(encoding="utf-8")
        before, _, rest = page.partition(BEGIN)
        PAGE.write_text(before + BEGIN + text + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
