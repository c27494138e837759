from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from dataloader.app.cli.command import cli
from tests.app.cli.fake_service import Standin, standing_in

Run = Callable[..., Result]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Standin]:
    """A stand-in for the service, where DL_URL says it is."""
    with standing_in() as standin:
        monkeypatch.setenv("DL_URL", standin.url)
        yield standin


@pytest.fixture
def run() -> Run:
    """Run a command within this process, as its shell would see it."""

    def invoked(*args: str, input: str | None = None) -> Result:
        return CliRunner().invoke(cli, list(args), input=input)

    return invoked
