"""Writes what the documentation takes from the code: `python -m docs.make`.

`job-lifecycle.md` is generated whole. Other pages have generated parts between
`<!-- generated: NAME -->` and `<!-- end: NAME -->`. llms.txt, the list of pages for programs that read them, is that of
`index.md`. `tests/test_docs.py` compares all with the code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from dataloader.app.db.rights import rights_table
from dataloader.app.queue.job import TRANSITIONS, ReleaseReason, Status, Transition
from docs import code_tables, signals
from tests.model import pages as model

DOCS = Path(__file__).resolve().parent
LLMS_FILE = DOCS.parent / "llms.txt"
_LIFECYCLE_PAGE = "job-lifecycle.md"
MARKED_PART = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end: \2 -->)", re.DOTALL)

STATUS_TEXTS = {
    Status.QUEUED: "It waits for its time, for a thread, or for its lock key.",
    Status.RUNNING: "One run owns it by a lease. Only that run's statements have an effect.",
    Status.SUCCEEDED: "The pipeline returned. Its return value is `result`.",
    Status.FAILED: "The pipeline raised and no attempt was left, or it could not run at all. `error` has the reason.",
    Status.CANCELED: "It was canceled before it finished.",
    Status.LOST: "Its worker vanished during its last attempt: what that attempt did is not known.",
}

TRANSITION_TEXTS = {
    Transition.CLAIM: "by a worker: takes the job for one attempt with a fresh `run_id` and a lease; `attempt` + 1",
    Transition.SETTLE: "by the owning run: how the attempt ended; `queued` after an error with attempts left",
    Transition.RELEASE: "by the owning run: back to the queue with the attempt refunded; `canceled` if requested",
    Transition.CANCEL: "by a caller: at once while it is queued, also when a plain `UPDATE` sets `cancel_requested`. A "
    "running job only gets that flag, and its worker is notified",
    Transition.REAP: "by any worker process: the lease expired, or the process is proved dead; `queued` with attempts "
    "left, else `lost` or `canceled`",
    Transition.REFUSE: "by the database: `max_attempts` is 0, so the job may have no attempt",
    Transition.RETRY: "by an operator: the same job under the same id, with all its attempts again",
}

RELEASE_TEXTS = {
    ReleaseReason.SHUTDOWN: "the worker stops, and the job did not end within `DL_SHUTDOWN_GRACE_SEC`",
    ReleaseReason.LOCK_BUSY: "another process still holds the session lock of its key; the job becomes blocked",
    ReleaseReason.NOT_STARTED: "claimed, but no thread was free, or the connection broke before its key was locked",
    ReleaseReason.WAITS: "its task waits for other jobs; the job becomes waiting until they have ended",
}


def write_pages() -> None:
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
    LLMS_FILE.write_text(llms_text(), encoding="utf-8")


def llms_text() -> str:
    """The pages of index.md in the form of llmstxt.org, with links from the checkout's folder."""
    description = re.findall(r"^# dataloader\n\n(.+)$", (DOCS.parent / "README.md").read_text("utf-8"), re.MULTILINE)[0]
    index = (DOCS / "index.md").read_text(encoding="utf-8").partition("\n## ")
    text = re.sub(r"\]\((?!\.\./)", "](docs/", "".join(index[1:])).replace("](../", "](")
    return f"# dataloader\n\n> {description}\n{text}"


def pages() -> Mapping[str, str]:
    """The pages with generated text, by name, as they should be."""
    return {name: generated_page(name) for name in page_names()}


def page_names() -> list[str]:
    marked = [path.name for path in DOCS.glob("*.md") if MARKED_PART.search(path.read_text(encoding="utf-8"))]
    return sorted([*marked, _LIFECYCLE_PAGE])


def generated_page(name: str) -> str:
    return job_lifecycle() if name == _LIFECYCLE_PAGE else fill_marked_parts((DOCS / name).read_text(encoding="utf-8"))


def fill_marked_parts(text: str) -> str:
    return MARKED_PART.sub(lambda match: f"{match[1]}{PARTS[match[2]]()}{match[3]}", text)


def decisions() -> str:
    """A list of links, in the order of their numbers."""
    titles = {path.name: path.read_text(encoding="utf-8").partition("\n")[0] for path in _decision_files()}
    if unnumbered := [name for name, title in titles.items() if not re.match(r"# \d+\. ", title)]:
        raise ValueError(f"these decisions have no number in their title: {', '.join(unnumbered)}")
    links = [(title.removeprefix("# ").partition(". "), name) for name, title in titles.items()]
    return "".join(f"{number}. [{title}](decisions/{name})\n" for (number, _, title), name in links)


def _decision_files() -> list[Path]:
    return sorted((DOCS / "decisions").glob("*.md"))


PARTS: Mapping[str, Callable[[], str]] = {
    "decisions": decisions,
    "folders": code_tables.folders,
    "threads": code_tables.threads,
    "connections": code_tables.connections,
    "statements": code_tables.statements,
    "wait-states": code_tables.wait_states,
    "duties": code_tables.duties,
    "advisory-locks": code_tables.advisory_locks,
    "job-fields": code_tables.job_fields,
    "trigger-options": code_tables.trigger_options,
    "schedule-fields": code_tables.schedule_fields,
    "schedule-options": code_tables.schedule_options,
    "feature-rights": lambda: rights_table() + "\n",
    "metrics": signals.metrics,
    "log-events": signals.log_events,
    "model-moves": model.move_diagram,
    "model-actions": model.action_table,
    "model-faults": model.fault_table,
    "model-promises": model.promise_table,
    "model-rules": model.rule_table,
    "model-configurations": model.configuration_table,
    "model-outside": model.outside_table,
}

# ── the life of a job ───────────────────────────────────────────────────────────────────────────────────────────────


def job_lifecycle() -> str:
    """The page, whole."""
    parts = [_INTRODUCTION, _diagram(), _status_table(), _transition_table(), _RULES, _WAIT_STATES, _EVENTS]
    return "\n".join([*parts, _reason_table()]) + "\n"


def _diagram() -> str:
    arrows = [
        f"    {start} --> {end}: {transition}"
        for (start, transition), ends in TRANSITIONS.items()
        for end in Status
        if end in ends
    ]
    final = [f"    {status} --> [*]" for status in Status if status.final]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> queued: enqueue", *arrows, *final, "```", ""])


def _status_table() -> str:
    rows = [f"| `{status}` | {'yes' if status.final else ''} | {STATUS_TEXTS[status]} |" for status in Status]
    return "\n".join(["## Statuses", "", "| status | final | |", "|---|---|---|", *rows, ""])


def _transition_table() -> str:
    head = ["## Transitions", "", "| from | " + " | ".join(Transition) + " |", "|---|" + "---|" * len(Transition)]
    rows = [f"| `{start}` | " + " | ".join(_cell(start, each) for each in Transition) + " |" for start in Status]
    texts = [f"- **{transition}**, {TRANSITION_TEXTS[transition]}." for transition in Transition]
    return "\n".join([*head, *rows, "", *texts, ""])


def _cell(start: Status, transition: Transition) -> str:
    ends = TRANSITIONS.get((start, transition), frozenset())
    return ", ".join(f"`{end}`" for end in Status if end in ends)


def _reason_table() -> str:
    return "\n".join([*_REASON_TABLE, *(f"| `{reason}` | yes | {RELEASE_TEXTS[reason]} |" for reason in ReleaseReason)])


_INTRODUCTION = """\
# Job lifecycle

This page is generated from `TRANSITIONS` in `app/queue/job.py` by `python -m docs.make`. A test drives every statement
from every status and compares the result with the same table.

A *run* is one claim of a job: it has a `run_id`. It counts as an *attempt* unless it is released.
"""

_RULES = """\
Rules for all of them:

- A transition is one guarded statement. Of two concurrent ones, one wins; the other matches no row and changes nothing.
- A run's statements name `job_id` and `run_id`. A run that is not the owner any more changes nothing.
- A job with a cancel request never goes back to `queued`. A success that came before the run saw the flag stays one.
- `attempt` counts attempts that started and were not refunded. It never exceeds `max_attempts`.
- `error` and `traceback` describe the last attempt: a claim clears them, and a success has none. `started_at` is when
  the first attempt started; `finished_at` is set in the final statuses only.
"""

_WAIT_STATES = """\
## Wait states of a queued job

Callers see `queued`. The column `wait_state` has the reason; each state has its own partial index, so a claim reads
only jobs that it may take.

| wait state | waits for | leaves it |
|---|---|---|
| `scheduled` | its `available_at`, or to be promoted, as after a plain INSERT | when it is due and any worker claims |
| `ready` | a thread of its queue | with a claim, by `priority`, then age |
| `blocked` | its `lock_key`, which another job holds | when the key is freed: one job per key, the first by order |
| `waiting` | other jobs, or an offload | when the last ends, or with `need: any` the first that ends as asked |
| `limited` | a limit or rate, `waits_on` | when a run in it ends, it is raised, or the next start comes: by order |

A job whose task no live worker of its queue knows is deferred: `scheduled`, with `unknown_task` set and an `error` that
says so. It is checked again after a pause of 5 seconds to 10 minutes that grows with its age, and at once when a worker
that knows the task starts.
"""

_EVENTS = """\
## Job events

Each transition writes a row to `dl_job_events` in its own transaction. `payload` holds `status` and `attempt` as they
were after the transition, and `run_id` where a run made it.

| kind | when |
|---|---|
| `queued` | the job was inserted, by any program |
| `picked` | claimed; with `worker` |
| `skipped` | canceled, because a parent did not end as the job asked; with `error` |
| `limited` | a limit is full, or a rate allows no start yet: the job waits; with `waits_on`, the name of the limit |
| `released` | a job that waited for other jobs or a limit became ready; with `limit`, its name |
| `heartbeat` | a renewal came late, over three heartbeats after the last; with `late_sec` |
| `cancel_requested` | a running job was requested to stop |
| `stop_pending` | every stop step was tried, and the attempt still runs; with `reason` |
| `debounced` | a further trigger with its `debounce` key moved its time, and changed its args as asked |
| `edited` | an operator changed the waiting job; with `before` and `after` |
| `requeue` | back to `queued`, or deferred; with `reason` |
| `done` | ended as `succeeded` |
| `failed` | ended as `failed` |
| `canceled` | ended as `canceled`; with the reason `expired` if it had not started by its `expires_at` |
| `lost` | ended as `lost` |
"""

_REASON_TABLE = [
    "| reason of a `requeue` | costs no attempt | |",
    "|---|---|---|",
    "| `error` | | the pipeline raised; with `error` and `pause_sec`, by default 30 s × attempt |",
    "| `lease_expired` | | the reaper requeued it after its lease expired |",
    "| `process_died` | | its worker process is proved dead; from the second time on with a pause |",
    "| `retry` | yes | an operator queued a finished job again; `attempt` starts at 0 |",
    "| `redrive` | yes | the same at a rate, by a bulk operation; with its `args_patch`, if it has one |",
    "| `by_hand` | yes | an `UPDATE` of another program set the job to `queued` |",
    "| `unknown_task` | yes | no live worker of the queue knows the task; the status was `queued` before, too |",
    "| `upgrade` | yes | it ran while the schema was upgraded, and another run had the same key |",
]

if __name__ == "__main__":
    write_pages()
