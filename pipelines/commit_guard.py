"""A connection whose transaction is committed by the block that lends it, and by nothing within. Portable."""

from __future__ import annotations

from typing import Any


class CommitGuard:
    """For a class of connections of psycopg2 or psycopg 3, which comes behind it. A commit within the block would
    bypass what that does right before its own."""

    in_transaction = False

    def commit(self) -> None:
        self._refuse_in_transaction("commit()")
        super().commit()  # type: ignore[misc]

    @property
    def autocommit(self) -> bool:
        return bool(getattr(super(), "autocommit"))  # noqa: B009 - of the class behind it

    @autocommit.setter
    def autocommit(self, on: bool) -> None:
        self._refuse_in_transaction("autocommit")
        getattr(super(CommitGuard, type(self)), "autocommit").__set__(self, on)  # noqa: B009 - likewise

    def set_autocommit(self, value: bool) -> None:
        self._refuse_in_transaction("set_autocommit()")
        super().set_autocommit(value)  # type: ignore[misc]

    def set_session(self, *args: Any, **options: Any) -> None:
        self._refuse_in_transaction("set_session()")
        super().set_session(*args, **options)  # type: ignore[misc]

    def set_isolation_level(self, value: Any) -> None:
        self._refuse_in_transaction("set_isolation_level()")
        super().set_isolation_level(value)  # type: ignore[misc]

    def _refuse_in_transaction(self, operation: str) -> None:
        if self.in_transaction:
            raise RuntimeError(f"{operation} within ctx.transaction(): it commits at the end of its block")
