"""The distribution: the name that pip installs, which is not that of the package."""

from __future__ import annotations

NAME = "pg-dataloader"


def version() -> str:
    from importlib import metadata  # noqa: PLC0415 - slow, and seldom needed

    try:
        return metadata.version(NAME)
    except metadata.PackageNotFoundError:  # run from a checkout that was not installed
        return "0+unknown"


def install_command(extra: str) -> str:
    """How to install the distribution with an extra."""
    return f"pip install '{NAME}[{extra}]'"
