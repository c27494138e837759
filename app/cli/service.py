"""The options that every command with a question to a running service has."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any, TypeVar

import click
from click.core import ParameterSource

from app.cli import text
from app.client import DEFAULT_URL, PATIENCE_SEC, Client, ServiceUnavailable, api_key, service_url

T = TypeVar("T")
_LONGEST_KEY = 1000  # characters that are read of a key's file
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
    """Give a command --url, --key-file, --timeout, --patience and --json, and a `Service` as its first argument."""

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
    @click.option(
        "--key-file",
        envvar="DL_API_KEY_FILE",
        type=click.File("r", encoding="utf-8"),
        metavar="FILE",
        help="The file with the API key, if the service asks for one; else DL_API_KEY.  [DL_API_KEY_FILE]",
    )
    @click.option("--key", envvar="DL_API_KEY", hidden=True, callback=_of_the_environment)
    @json_option
    @functools.wraps(command)
    def with_service(
        *,
        url: str,
        timeout: float,
        patience: float,
        key: str | None,
        key_file: IO[str] | None,
        as_json: bool,
        **rest: Any,
    ) -> None:
        on_pause = _silence if as_json else _Note().say
        client = Client(url, timeout_sec=timeout, patience_sec=patience, key=_key(key, key_file), on_pause=on_pause)
        typed = click.get_current_context().get_parameter_source("url") is ParameterSource.COMMANDLINE
        command(Service(client, as_json, f" --url {client.url}" if typed else ""), **rest)

    return with_service


def _of_the_environment(ctx: click.Context, param: click.Parameter, told: str | None) -> str | None:
    if ctx.get_parameter_source("key") is ParameterSource.COMMANDLINE:
        raise click.UsageError("everybody on this machine can read a command line; use --key-file or DL_API_KEY")
    return told


def _key(told: str | None, file: IO[str] | None) -> str | None:
    try:
        if file is not None:
            return api_key(file.read(_LONGEST_KEY))
        return None if told is None else api_key(told)
    except ValueError as error:
        raise click.UsageError(str(error)) from None  # a file that is not text is told without what is in it


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
