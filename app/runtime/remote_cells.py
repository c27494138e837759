"""The services of DL_CELLS, as the page of cells and `doctor --cells` ask them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from app.web.options import RemoteCell
from dataloader.client import Client

_TIMEOUT_SEC = 1.0

ReadSecret = Callable[[str], str]


def remote_cells(
    cells: Mapping[str, Any], read_secret: ReadSecret, *, timeout_sec: float = _TIMEOUT_SEC
) -> dict[str, RemoteCell]:
    """Return the cells by name; nothing is asked yet, and a key is read each time."""
    found = {}
    for name, cell in cells.items():
        url, secret = (cell, None) if isinstance(cell, str) else (cell["url"], cell["key"]["$secret"])
        found[name] = RemoteCell(url.rstrip("/"), partial(_read_overview, url, secret, read_secret, timeout_sec))
    return found


def _read_overview(url: str, secret: str | None, read_secret: ReadSecret, timeout_sec: float) -> Mapping[str, Any]:
    key = None if secret is None else read_secret(secret)
    client = Client(url, key=key, timeout_sec=timeout_sec, retry_timeout_sec=0)
    figures: Mapping[str, Any] = client.request("GET", "/api/v1/overview")
    return figures
