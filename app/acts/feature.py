"""A feature: a capability in a folder of its own, and what it adds to the service.

What it adds is named by module and function within its folder, and imported when it is needed: a worker process does
not import pages. `app/features/registry.py` lists all features; without its line there a service does not have one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any


@dataclass(frozen=True, kw_only=True)
class NavCount:
    """A number next to a link of the navigation."""

    read: str  # a function of SharedReads that returns it
    noun: str  # of one; the link shows its first word
    is_bad: bool = False


@dataclass(frozen=True)
class NavLink:
    """A page of the side navigation and of the command palette."""

    group: str
    title: str
    path: str
    count: NavCount | None = None

    def is_current(self, path: str) -> bool:
        return path == self.path or (self.path != "/" and path.startswith(f"{self.path}/"))


@dataclass(frozen=True)
class JobPanel:
    """A part of the job's page that is read only while it is open, from the page `/jobs/<job_id>/<path>`: its element
    with the id `<path>-now`. The page of a job in one of `statuses` has it."""

    title: str
    path: str
    statuses: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Feature:
    name: str  # of its folder
    blueprints: tuple[str, ...] = ()  # functions of a Site: routes and pages
    navigation: tuple[NavLink, ...] = ()
    job_panels: tuple[JobPanel, ...] = ()
    task_note: str | None = None  # a function of a Site: a function of a task's name, the note of its page or None
    task_parts: str | None = (
        None  # a function of a Site and a task's name: TaskParts of its page (app/acts/task_parts.py)
    )
    charts: str | None = None  # a function of a Site: a function of a task's name or None: LineCharts of a page
    page_values: str | None = None  # a function of a Site: what the frame of each page shows of it, by name
    collectors: tuple[str, ...] = ()  # functions of a Site: collectors of metrics
    metrics: str | None = None  # a function of an executor: families of metrics that are read from the database
    converters: dict[str, str] = field(default_factory=dict)  # of the parts of paths
    has_commands: bool = False  # its commands.py has COMMANDS, which `make generated` lists
    duties: str | None = None  # a function of a DutyContext: what the maintenance leader does
    threads: str | None = None  # a function of a ThreadContext: a thread that each worker process has
    declare: str | None = None  # a function of a Declaration: what a worker process writes of its tasks when it starts
    # A function of the settings and their secrets: the options of its duties, threads, checks, reasons and routes.
    options: str | None = None
    follower_duties: str | None = None  # as `duties`, of each other worker process meanwhile
    checks: str | None = None  # a function of an executor and of the feature's options: findings of doctor
    problems: str | None = None  # a function of SharedReads: Problems of the overview (app/acts/service_problems.py)
    # Of problems and of the audit: by kind the path of a page, `{}` for the name.
    subjects: dict[str, str] = field(default_factory=dict)
    search: str | None = (
        None  # a function of a Site and a text: Matches of the page header's search (app/acts/matches.py)
    )
    notes: str | None = None  # a function of an executor: Notes of the overview (app/acts/notes.py)
    reasons: str | None = None  # a class of Reasons (app/acts/reasons.py): what it says of jobs that wait or run
    explainer: str | None = None  # a function of an executor, the features and their options: an Explainer of jobs
    task_calls: dict[str, str] = field(default_factory=dict)  # functions that the contexts of tasks call, by name
    test_clock: str | None = None  # a function of a session and tasks: what starts jobs by time, for tests of tasks

    def load(self, name: str) -> Any:
        """Import `module.attribute` of this feature's folder."""
        module, _, attribute = name.partition(".")
        return getattr(import_module(f"dataloader.app.features.{self.name}.{module}"), attribute)


def has_task_call(features: Iterable[Feature], name: str) -> bool:
    return any(name in feature.task_calls for feature in features)


def load_task_call(features: Iterable[Feature], name: str) -> Any:
    """Load the function that a task's context calls. Raises RuntimeError if no feature has it."""
    for feature in features:
        if name in feature.task_calls:
            return feature.load(feature.task_calls[name])
    raise RuntimeError(f"this service has no feature that offers {name!r} to tasks")


def load_all(features: Iterable[Feature], part: str) -> Iterator[Any]:
    """Load what all features have of a part, such as `blueprints`."""
    for feature in features:
        named = getattr(feature, part)
        names = (named,) if isinstance(named, str) else named.values() if isinstance(named, dict) else named or ()
        yield from map(feature.load, names)
