"""The options that every command with a question to a running service has."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from app.cli import text
from app.client import DEFAULT_URL, PATIENCE_SEC, Client, ServiceUnavailable, service_url

T = TypeVar("T")
AS_JSON = "app.cli.as_json"  # in the context's meta: how an error is to be told


@dataclass(frozen=True)
class Service:
    """A running service, and how its answers are to be shown."""

    client: Client
    as_json: bool
    url_hint: str  # what a suggested command must carry to reach the same service

    def show(self, said: object, lines: Sequence[str]) -> None:
        click.echo(text.json_text(said) if self.as_json else "\n".join(lines))

    def table(
        self, said: object, names: Sequence[str], rows: Sequence[Sequence[str]], *, whole: Sequence[str], empty: str
    ) -> None:
        """A table for a person, aligned text for a pipe, JSON when asked for."""
        if self.as_json:
            click.echo(text.json_text(said))
        elif not rows:
            click.echo(empty, err=True)
        else:
            show_table(names, rows, whole=whole)


def show_table(names: Sequence[str], rows: Sequence[Sequence[str]], *, whole: Sequence[str] = ()) -> None:
    if sys.stdout.isatty():
        from app.cli import draw  # noqa: PLC0415 - rich is loaded where it draws, and only there

        draw.table(names, rows, whole=whole)
    else:
        click.echo("\n".join(text.columns(names, rows)))


def usage(parse: Callable[[str], T]) -> Callable[[str], T]:
    """A parser as the type of an option: its ValueError is the user's to read."""

    def parsed(told: str) -> T:
        try:
            return parse(told)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return parsed


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    def remember(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
        ctx.meta[AS_JSON] = value
        return value

    option = click.option(
        "--json", "as_json", is_flag=True, callback=remember, help="Answer in JSON, for programs; errors too."
    )
    return option(command)


def asks_service(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command --url, --timeout, --patience and --json, and a `Service` as its first argument."""

    @click.option(
        "--url",
        envvar="DL_URL",
        default=DEFAULT_URL,
        type=usage(service_url),
        metavar="URL",
        show_default=True,
        show_envvar=True,
        help="Where the service answers.",
    )
    @click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=10.0,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait for one answer.",
    )
    @click.option(
        "--patience",
        type=click.FloatRange(min=0),
        default=PATIENCE_SEC,
        show_default=True,
        metavar="SECONDS",
        help="How long to go on asking a service that is away, where asking twice does no harm.",
    )
    @json_option
    @functools.wraps(command)
    def with_service(*, url: str, timeout: float, patience: float, as_json: bool, **rest: Any) -> None:
        on_pause = _silence if as_json else _Note().say
        client = Client(url, timeout_sec=timeout, patience_sec=patience, on_pause=on_pause)
        typed = click.get_current_context().get_parameter_source("url") is ParameterSource.COMMANDLINE
        command(Service(client, as_json, f" --url {client.url}" if typed else ""), **rest)

    return with_service


class _Note:
    """Tells once that the command waits for a service: a silent prompt looks like a hang."""

    def __init__(self) -> None:
        self._said = False

    def say(self, outage: ServiceUnavailable) -> None:
        if not self._said:
            click.echo(f"{outage}; trying again …", err=True)
        self._said = True


def _silence(_: ServiceUnavailable) -> None:
    return None
