"""API keys: what each may do, and where they are kept. The table holds no key, only what tells a right one."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """What a key may do. `operate` may also read and trigger; `admin` may do everything; the first two are apart."""

    READ = "read"  # look at everything: jobs, their args and logs, tasks, numbers
    TRIGGER = "trigger"  # put jobs into the queue, of all tasks and queues or of named ones, and ask how a job does
    OPERATE = "operate"  # cancel, retry, change; and read who did
    ADMIN = "admin"  # keys

    @property
    def implied(self) -> frozenset[Scope]:
        """This scope and all that come with it."""
        return _IMPLIED[self]


_BOTH = frozenset({Scope.READ, Scope.TRIGGER})
_IMPLIED = {
    Scope.READ: frozenset({Scope.READ}),
    Scope.TRIGGER: frozenset({Scope.TRIGGER}),
    Scope.OPERATE: _BOTH | {Scope.OPERATE},
    Scope.ADMIN: frozenset(Scope),
}
