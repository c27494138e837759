"""The reading paths of docs/architecture.md: seven parts that a reader holds in an afternoon, and the claim."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from dataloader.app.queue.jobs import JobQueue

ROOT = Path(__file__).parents[1]
MAX_LINES = 2_500
MAX_CLAIM_LINES = {".py": 900, ".sql": 350}
MAX_DECISIONS_OF_THE_CLAIM = 8


def section(title: str = "## Reading path", end: str = "## ") -> str:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    return page.partition(f"{title}\n")[2].partition(f"\n{end}")[0]


def parts(text: str) -> list[list[str]]:
    """The names in the first cell of each row."""
    return [re.findall(r"`(.+?)`", row) for row in re.findall(r"^\| \d\. (.+?) \|", text, re.MULTILINE)]


def lines_of_file(name: str) -> int:
    return len((ROOT / name).read_text(encoding="utf-8").splitlines())


def lines_of_sql_function(name: str) -> int:
    """With the comment in front of it."""
    schema = (ROOT / "app/queue/schema.sql").read_text(encoding="utf-8")
    text = re.search(
        rf"^(--[^\n]*\n)*CREATE OR REPLACE FUNCTION {name}\(.*?^END \$\$;$", schema, re.MULTILINE | re.DOTALL
    )
    assert text is not None, name
    return len(text.group().splitlines())


def test_seven_parts_are_short_enough():
    rows = parts(section(end="### "))
    lines = {name: lines_of_file(name) for row in rows for name in row}

    assert len(rows) == 7
    assert sum(lines.values()) <= MAX_LINES, lines


def test_claim_is_short_enough():
    *files, (method, jobs, *functions, schema) = parts(section("### The claim"))
    python = {name: lines_of_file(name) for row in files for name in row}
    python[method] = len(inspect.getsource(JobQueue.claim).splitlines())
    sql = {name: lines_of_sql_function(name) for name in functions}

    assert (method, jobs, schema) == ("JobQueue.claim", "app/queue/jobs.py", "app/queue/schema.sql")
    assert sum(python.values()) <= MAX_CLAIM_LINES[".py"], python
    assert sum(sql.values()) <= MAX_CLAIM_LINES[".sql"], sql


def test_claim_is_explained_by_few_decisions_that_hold():
    links = re.findall(r"\]\((decisions/.+?)\)", section())

    assert 0 < len(links) <= MAX_DECISIONS_OF_THE_CLAIM
    assert [link for link in links if "Superseded" in (ROOT / "docs" / link).read_text(encoding="utf-8")] == []
