"""An act: one function for a change that an operator makes; its route, its form and its line in the audit file follow.

    @act("limit.set", "PUT", "/limits/<path:name>", may_name_unknown=True, unaudited={"note"})
    def set_limit(call: Call, name: str, body: LimitSetting) -> ChangedLimit:
        '''Create or replace a limit.'''

The annotations of `body` and `query` are the models of the request, that of the result the response; the docstring
describes the operation. A request passes `web.py`: it validates the body, performs the act, and writes the audit line
after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

from pydantic import BaseModel

from dataloader.app.acts.audit_log import AuditEntry
from dataloader.app.acts.known_names import NameCheck
from dataloader.app.db.statements import Executor
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.options import WebOptions
from dataloader.pipelines.contract import Pipelines

if TYPE_CHECKING:
    from dataloader.app.http.jobs.job_maker import JobMaker

_PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>")


@dataclass
class Call:
    """The request that performs an act."""

    executor: Executor
    actor: str  # the name of the caller
    names: NameCheck
    pipelines: Pipelines
    options: WebOptions
    jobs: JobMaker
    undos: Sequence[type[Undo]]  # of all acts of the service
    event: str | None  # of the audit line, by default the act's name; None: nothing was changed, so there is no line
    strict: bool = False  # refuse the name of a queue or task that is not known
    if_version: str | None = None  # change what has this version, and nothing else
    audited: dict[str, Any] = field(default_factory=dict)  # more fields of the audit line, from what was changed

    def audit(self, **fields: Any) -> None:
        self.audited.update(fields)

    def check_names(self, *, queue: str | None = None, task: str | None = None, field: str = "") -> list[str]:
        """Return why the queue or task may be misspelt. Raises NameNotFound if the call is strict.

        `field` is the field that has the name, if it is not `queue` or `task`.
        """
        return self.names.warnings(queue=queue, task=task, strict=self.strict, field=field)


class Undo:
    """Writes back the values before an act, of one row that it changed. `undone_by` gives an act such a class.

    It is called in a transaction: `lock` of all rows, then `current`, then `restore` if nothing has changed since.
    """

    subject: ClassVar[str]  # of the entries of the audit; of several classes the first one that can undo an entry does
    fields: ClassVar[frozenset[str]]  # that it writes back; the message after the act shows those not named `…_by`

    def __init__(self, call: Call, entry: AuditEntry) -> None:
        self.call, self.name, self.at = call, str(entry.subject_id), entry.at
        self.before: dict[str, Any] | None = entry.before  # None: the act created the row
        self.after: dict[str, Any] | None = entry.after  # None: the act deleted it

    @classmethod
    def can_undo(cls, before: dict[str, Any] | None, after: dict[str, Any] | None, name: str) -> bool:
        """Whether the values before the act are known, and can be written back."""
        return before is not None and after is not None and before.keys() | after.keys() <= cls.fields

    def lock(self) -> None:
        """Lock the row until the transaction ends, by the statement `lock_<subject>`."""
        self.call.executor.execute(f"lock_{self.subject}", {"subject_id": self.name})

    def current(self) -> Any:
        """What there is now; None: there is no such row."""
        raise NotImplementedError

    def written(self) -> Mapping[str, Any]:
        """The values that the act wrote."""
        return self.after or {}

    def restore(self) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Act:
    name: str  # of its line in the audit file: subject and what was done
    method: str
    path: str  # below /api/v1, as Flask writes it
    perform: Callable[..., Any]
    body: type[BaseModel] | None
    query: type[BaseModel] | None
    response: Any
    scope: Scope  # that a caller needs
    problems: Sequence[Any]
    may_name_unknown: bool  # it takes names of queues and tasks that are not known, unless the call is strict
    unaudited: Collection[str]  # fields of the body that the audit file leaves out
    if_match: bool  # a request may name the version that it changes
    has_version: bool  # the response has the `version` of what was changed, which is its ETag
    audited_as: Mapping[str, str]  # the names that parameters of the path have in the audit line, where they differ
    undo: type[Undo] | None = None  # what `undone_by` names

    @property
    def parameters(self) -> list[str]:
        """The names in its path."""
        return parameters_of(self.path)

    def audit_fields(self, path: Mapping[str, Any], *models: BaseModel | None) -> dict[str, Any]:
        fields = {self.audited_as.get(name, name): value for name, value in path.items()}
        for model in models:
            fields |= {} if model is None else model.model_dump(exclude=set(self.unaudited), exclude_none=True)
        return fields


def parameters_of(path: str) -> list[str]:
    return _PARAMETER.findall(path)


def acts_of(module: ModuleType) -> list[Act]:
    """The acts that a module defines, in their order."""
    found = (value for value in vars(module).values() if isinstance(value, Act))
    return [act for act in found if act.perform.__module__ == module.__name__]


def act(
    name: str,
    method: str = "",
    path: str = "",
    *,
    scope: Scope = Scope.OPERATE,
    problems: Sequence[Any] = (),
    may_name_unknown: bool = False,
    unaudited: Collection[str] = (),
    if_match: bool = False,
    has_version: bool = False,
    audited_as: Mapping[str, str] | None = None,
) -> Callable[[Callable[..., Any]], Act]:
    """Make an act of a function, whose parameters are the call, those of the path, and `body` and `query` if any.

    Without a method and a path it has no route.
    """

    def decorate(function: Callable[..., Any]) -> Act:
        types = get_type_hints(function)
        return Act(
            name=name,
            method=method,
            path=path,
            perform=function,
            body=types.get("body"),
            query=types.get("query"),
            response=types["return"],
            scope=scope,
            problems=problems,
            may_name_unknown=may_name_unknown,
            unaudited=unaudited,
            if_match=if_match,
            has_version=has_version,
            audited_as=audited_as or {},
        )

    return decorate


def undone_by(undo: type[Undo]) -> Callable[[Act], Act]:
    """Name what undoes an act. The page after an act offers it for each change of the undo's subject."""
    return lambda act: replace(act, undo=undo)
