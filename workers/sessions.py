"""The database sessions of a worker pool, by role."""

from __future__ import annotations

from uuid import UUID

from dataloader.app.db.connection import Session
from dataloader.app.db.statements import Executor
from dataloader.workers.pool_options import PoolOptions


class PoolSessions:
    """Listen, claim, renew and settle have a session each. A program that embeds workers hands in what settles."""

    def __init__(self, options: PoolOptions, worker_id: UUID) -> None:
        self._options, self._worker_id = options, worker_id
        self._sessions = {role: self.make(role) for role in ("listen", "claim", "renew")}
        settle = options.executor
        if settle is None:
            settle = self._sessions["settle"] = self.make("settle")
        self.settle: Executor = settle

    def __getitem__(self, role: str) -> Session:
        return self._sessions[role]

    @property
    def executors(self) -> dict[str, Executor]:
        return {**self._sessions, "settle": self.settle}

    def make(self, role: str) -> Session:
        """Make a session that connects when it is first used."""
        options = self._options
        timeout_sec = options.command_timeout_sec
        if role in ("listen", "renew"):  # the heartbeat waits for both, and leases wait for the heartbeat
            timeout_sec = min(timeout_sec, max(1.0, options.heartbeat_sec))
        return Session(
            options.dsn,
            application_name=f"dataloader-{role}:{self._worker_id}",  # others end it by that when this is dead
            schema=options.schema,
            connect_timeout_sec=options.connect_timeout_sec,
            command_timeout_sec=timeout_sec,
        )

    def close(self, *roles: str) -> None:
        """Close the sessions of these roles, or all."""
        for role in roles or tuple(self._sessions):
            self._sessions[role].close()
