"""Tables of modules, threads, connections and statements, read from the source text."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click

from dataloader._job_fields import REQUEST_FIELDS, REQUIRED_FIELDS, Kind
from dataloader.app.cli.command import cli
from dataloader.app.db.statements import parse_statements
from dataloader.app.queue.job import WAIT_STATES
from dataloader.pipelines.schedule_fields import SCHEDULE_FIELDS
from dataloader.pipelines.schedule_fields import Kind as ScheduleKind

KIND_TEXTS = {
    Kind.PRIORITY: "0 to 2147483647",
    **dict.fromkeys((Kind.COUNT, Kind.SECONDS, Kind.LEASE), "1 to 2147483647"),
    Kind.TENANT: "at most 500 bytes",
    Kind.TAGS: "up to 20, each of 1 to 100 bytes and without a comma",
    Kind.TIME: "the years 0002 to 9998",
    Kind.ARGS: "an object",
    Kind.RETRY: "see below",
    Kind.LIMITS: "up to four [limits](limits.md)",
    Kind.PARENTS: '[`[{"job_id": …, "on": "succeeded"}]`](graphs.md); `on` is `succeeded`, `ended` or `failed`',
    Kind.NEED: "`all` or `any`",
    Kind.DEBOUNCE: '[`{"key", "wait_sec", "max_wait_sec", "args"}`](#debounce-throttle-and-expiry)',
    Kind.THROTTLE: '[`{"key", "per_sec"}`](#debounce-throttle-and-expiry)',
    Kind.WEBHOOK: '[`{"url": …, "events": […]}`](webhooks.md)',
}

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("app", "workers", "pipelines", "dataloader")

WAIT_STATE_TEXTS = {
    "ready": "a thread.",
    "scheduled": "its time, or for a worker that knows its task.",
    "blocked": "its lock key, which a running job has.",
    "limited": "room in a limit.",
    "waiting": "other jobs, or for the end of an offload.",
}
DUTY_PROCESSES = {
    ("duties", "create_duties"): "the maintenance leader",
    ("follower_duties", "create_follower_duties"): "every other worker process, meanwhile and at longer intervals",
}
LOCK_TEXTS = {
    "1684828526, hash": "a job of the lock key is blocked or unblocked",
    "1684828527, 0": "blocked jobs are repaired",
    "1684828527, 2": "events are aggregated to statistics",
    "1684828527, 3": "partitions are created or the schema is applied",
    "1684828527, 5": "the process is the maintenance leader: held by its session",
    "1684828527, 8": "jobs that wait for limits are woken",
    "1684828527, 9": "children of ended parents are decided that were left",
    "1684828528, hash": "jobs of a queue with a limit of its own, or of a fair queue, are claimed",
    "1684828529, hash": "starts are counted in the limit, or it is changed",
    "1684828530, 0": "old deliveries of webhooks are deleted",
    "1684828530, hash": "an INSERT into the queue sends no notification (shared)",
    "1684828531, hash": "edges of the graph change; of `waits`: a running job begins to wait for others",
    "1684828532, hash": "a batch with this debounce key makes or changes jobs",
    "1684828533, hash": "one of four [permits](decisions/008-claim-in-one-function.md) of a queue: a claim prefetches",
    "1684828534, hash": "a process sends its heartbeat, or its runs are taken from it",
}
SINGLE_LOCK_TEXTS = {
    "1684828528": "`migrate` changes the database",
    "hashtext(lock_key)": "a job of the key runs: held by the session of its process that claims",
}


def module_page() -> str:
    """A page with the first line of each module's docstring, a section per package."""
    sections = []
    for package in (path.parent for path in source_files() if path.name == "__init__.py"):
        files = [path for path in sorted(package.glob("*.py")) if path.name != "__init__.py"]
        if files:
            rows = ((f"`{path.name}`", _first_line(path)) for path in files)
            sections.append(f"## `{shown_path(package)}/`\n\n{_table('module', 'what it does', rows)}")
    return "\n".join(["# Modules\n", *sections])


def threads() -> str:
    """Each named thread that the product starts, with its module."""
    found = {row for path in source_files() for row in _thread_names(path)}
    return _table("thread", "started in", sorted(found))


def connections() -> str:
    """Each `application_name` of a connection to the queue's server, with its module."""
    found = {row for path in source_files() for row in _connection_names(path)}
    return _table("`application_name`", "opened in", sorted(found))


def statements() -> str:
    """The names of the statements, a row per .sql file."""
    rows = (
        (f"`{shown_path(path)}`", ", ".join(f"`{name}`" for name in names))
        for path in sorted((ROOT / "app").rglob("*.sql"))
        if (names := parse_statements(path.read_text(encoding="utf-8"), "public"))
    )
    return _table("file", "statements", rows)


def wait_states() -> str:
    """What a queued job waits for, and the partial indexes that find such jobs."""
    indexes = re.findall(r"CREATE (?:UNIQUE )?INDEX (\w+) ON dl_jobs ([^;]+);", _schema())
    rows = []
    for state in WAIT_STATES:
        predicate = "waits_on IS NOT NULL" if state == "limited" else f"wait_state = '{state}'"
        names = [f"`{name}`" for name, rest in indexes if predicate in rest]
        rows.append((f"*{state}*", f"{WAIT_STATE_TEXTS[state]} {', '.join(names)}"))
    return _table("wait state", "the job waits for; indexes of such jobs", rows)


def duties() -> str:
    """The periodic duties of the maintenance leader and of the other processes."""
    paths = [ROOT / "workers/maintenance.py", *sorted((ROOT / "app/features").glob("*/duty.py"))]
    functions = [n for path in paths for n in ast.parse(path.read_text("utf-8")).body if isinstance(n, ast.FunctionDef)]
    rows = []
    for names, process in DUTY_PROCESSES.items():
        nodes = [node for function in functions if function.name in names for node in ast.walk(function)]
        calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "Duty"]
        rows.append((process, ", ".join(f"`{text}`" for call in calls for text in constant_texts(call.args[0]))))
    return _table("process", "duties", rows)


def advisory_locks() -> str:
    """The numbers of advisory locks in the SQL, with what each protects."""
    rows = [(f"`{number}`", LOCK_TEXTS.get(number, "")) for number in lock_numbers()]
    rows += [(f"`{number}`", text) for number, text in SINGLE_LOCK_TEXTS.items()]
    return _table("lock", "held while", rows)


def lock_numbers() -> list[str]:
    """The locks of two numbers that the statements take; the second is a number or the hash of a name."""
    texts = [
        _schema(),
        *(path.read_text("utf-8") for path in sorted((ROOT / "app").rglob("*.sql")) if "migrations" not in path.parts),
    ]
    found = [pair for text in texts for pair in re.findall(r"advisory\w+\((1684828\d{3}), ?(\w+)", text)]
    return sorted({f"{first}, {second if second.isdecimal() else 'hash'}" for first, second in found})


def _schema() -> str:
    return (ROOT / "schema.sql").read_text(encoding="utf-8")


def source_files() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def shown_path(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _first_line(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def _thread_names(path: Path) -> Iterator[tuple[str, str]]:
    if not re.search("Thread|RefreshingValue|worker-", path.read_text(encoding="utf-8")):
        return
    for call in _calls(path):
        function = ast.unparse(call.func).rpartition(".")[2]
        if function in ("Thread", "ThreadPoolExecutor", "BackgroundThread", "RefreshingValue", "RefreshingValues"):
            names = [key.value for key in call.keywords if key.arg in ("name", "thread_name_prefix")]
            names += call.args[:1] if function == "BackgroundThread" else []
        else:
            names = [name for name in call.args[:1] if next(constant_texts(name), "").startswith("worker-<")]
        yield from ((f"`{text}`", f"`{shown_path(path)}`") for name in names for text in constant_texts(name))


def _connection_names(path: Path) -> Iterator[tuple[str, str]]:
    source = path.read_text(encoding="utf-8")
    if not re.search("dataloader[-:]", source):
        return
    tree = ast.parse(source)
    values = [key.value for node in ast.walk(tree) if isinstance(node, ast.Call) for key in node.keywords]
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        values += [value for value in (*function.args.defaults, *function.args.kw_defaults) if value is not None]
        values += [node.value for node in function.body if isinstance(node, ast.Return) and node.value is not None]
    for value in values:
        yield from (
            (f"`{text}`", f"`{shown_path(path)}`") for text in constant_texts(value) if _is_connection_name(text)
        )


def _is_connection_name(text: str) -> bool:
    return text.startswith(("dataloader-", "dataloader:")) and " " not in text and not text.endswith("-client")


def _calls(path: Path) -> Iterator[ast.Call]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def constant_texts(node: ast.expr) -> Iterator[str]:
    """The text of a constant or an f-string; its placeholders by the last name in them, as in `worker-<queue>`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else _placeholder(part) for part in node.values)


def _placeholder(part: ast.expr) -> str:
    names = [node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in ast.walk(part)]
    return f"<{next((name for name in names if name not in ('', 'str', 'self')), '')}>"


def _table(left: str, right: str, rows: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> str:
    return "\n".join([f"| {left} | {right} |", "|---|---|", *(f"| {one} | {other} |" for one, other in rows), ""])


def job_fields() -> str:
    """The fields of a trigger, with their limits and defaults."""
    rows = ["| field | | values | default |", "|---|---|---|---|"]
    for name, field in REQUEST_FIELDS.items():
        default = field.unset or ("null" if field.default is None else f"`{json.dumps(field.default)}`")
        default = {Kind.ARGS: "`{}`", Kind.LEASE: "`DL_DEFAULT_LEASE_TTL_SEC`"}.get(field.kind, default)
        if name in REQUIRED_FIELDS:
            default = "" if name == "task" else "the task's, if it has one; else required"
        rows.append(f"| `{name}` | {field.text} | {KIND_TEXTS.get(field.kind, '')} | {default} |")
    return "\n".join(rows) + "\n"


def folders() -> str:
    """The folders with code, each by the docstring of its package."""
    rows = ["| folder | holds |", "|---|---|"]
    for path in (ROOT / folder for folder in FOLDERS):
        for package in sorted(path.rglob("__init__.py")):
            rows.append(f"| `{shown_path(package.parent)}/` | {_first_line(package)} |")
    return "\n".join(rows) + "\n"


def schedule_fields() -> str:
    """The fields of a schedule, with their options of `@schedule`, values and defaults."""
    rows = ["| field | option of `@schedule` | | values | default |", "|---|---|---|---|---|"]
    for name, field in SCHEDULE_FIELDS.items():
        option = {"kind": "the first, `every=`, `after=`", "expression": "", "after": "`after`"}.get(name)
        option = option if option is not None else f"`{field.option}`" if field.option else ""
        values = ", ".join(f"`{value}`" for value in field.choices)
        if field.kind in (ScheduleKind.NUMBER, ScheduleKind.SECONDS):
            values = f"{field.minimum:,} to {field.maximum:,}"
        default = "" if field.default in (None, "", (), {}) else f"`{json.dumps(field.default)}`"
        text, _, unset = field.text.partition("; null: ")
        rows.append(f"| `{name}` | {option} | {text} | {values} | {unset or default} |")
    rows.append("| | `off=True` | Paused until a person resumes it, in a database that does not know it yet | | |")
    return "\n".join(rows) + "\n"


def trigger_options() -> str:
    """The options of `dataloader trigger` that are fields of a job."""
    return _options(("trigger",), (name for name in REQUEST_FIELDS if name != "args"))


def schedule_options() -> str:
    """The options of `dataloader schedules create` that are fields of a schedule."""
    return _options(("schedules", "create"), (name for name in SCHEDULE_FIELDS if name != "args"))


def _options(command_path: Sequence[str], names: Iterable[str]) -> str:
    command: click.Command | None = cli
    for word in command_path:
        assert isinstance(command, click.Group)  # noqa: S101 - all but the last are groups
        command = command.get_command(click.Context(command), word)
    options = {parameter.name: parameter for parameter in (command.params if command else ())}
    rows = ["| option | |", "|---|---|"]
    for name in names:
        option = options.get(name)
        if isinstance(option, click.Option):
            rows.append(f"| `{option.opts[0]}` | {(option.help or '').replace('  [', ' [')} |")
    return "\n".join(rows) + "\n"
