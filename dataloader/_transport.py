"""Connections of `requests` as the client needs them: the certificates they trust, and why they failed."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

from requests.adapters import HTTPAdapter


class SystemTrustAdapter(HTTPAdapter):
    """Trusts the certificates of the system and of SSL_CERT_FILE in addition to those of `requests`."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, ssl_context=ssl.create_default_context(), **kwargs)


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and what caused it, the first cause last."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        reason = getattr(cause, "reason", None)  # of urllib3's MaxRetryError
        cause = cause.__cause__ or cause.__context__ or (reason if isinstance(reason, BaseException) else None)
