"""Where gunicorn was told that the app stands, which it takes from the environment alone."""

from __future__ import annotations

import os


def script_name() -> str:
    return os.environ.get("SCRIPT_NAME", "")
