"""The options of every command that sends requests to a running service, and how such a command prints."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from app.cli import text
from app.cli.watch import OutageNotice
from dataloader._address import DEFAULT_URL, RETRY_TIMEOUT_SEC, parse_api_key, parse_url
from dataloader.errors import ServiceFault

if TYPE_CHECKING:
    from dataloader import Client

T = TypeVar("T")
_MAX_KEY_LENGTH = 1000  # characters read from a key file
AS_JSON_META_KEY = "app.cli.as_json"  # in the context's meta: print errors as JSON


@dataclass(frozen=True)
class RemoteService:
    """A running service, and how its answers are printed."""

    client: Client
    as_json: bool
    url_hint: str  # the option that a suggested command needs to reach the same service

    def get(self, path: str, **query: Any) -> Any:
        return self.client.request("GET", path, query=query)

    def post(self, path: str, body: text.Payload | None = None, *, repeatable: bool = False) -> Any:
        return self.client.request("POST", path, body=body, repeatable=repeatable)

    def patch(self, path: str, changes: text.Payload) -> Any:
        """Change what is not None of `changes`."""
        body = {name: value for name, value in changes.items() if value is not None}
        if not body:
            raise click.UsageError("nothing to change; see --help for the options")
        return self.client.request("PATCH", path, body=body)

    def delete(self, path: str) -> Any:
        return self.client.request("DELETE", path)

    def print_payload(self, payload: object, *lines: str) -> None:
        click.echo(text.json_text(payload) if self.as_json else "\n".join(lines))

    def print_table(
        self,
        payload: object,
        columns: text.Columns,
        items: Sequence[text.Payload],
        *,
        uncut: Sequence[str],
        empty_message: str,
    ) -> None:
        """Print a table for a person, aligned text for a pipe, JSON when asked for."""
        if self.as_json:
            click.echo(text.json_text(payload))
        elif not items:
            click.echo(empty_message, err=True)
        else:
            print_table(columns, items, uncut=uncut)


def print_table(columns: text.Columns, items: Sequence[text.Payload], *, uncut: Sequence[str] = ()) -> None:
    names, rows = list(columns), text.table_rows(columns, items)
    if sys.stdout.isatty():
        from app.cli import render  # noqa: PLC0415 - rich is loaded only where it draws

        render.print_table(names, rows, uncut=uncut)
    else:
        click.echo("\n".join(text.align_columns(names, rows)))


def option_type(parse: Callable[[str], T]) -> Callable[[str], T]:
    """A parser as the type of an option: its ValueError is the user's to read."""

    def parsed(raw: str) -> T:
        try:
            return parse(raw)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return parsed


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    def store_flag(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
        ctx.meta[AS_JSON_META_KEY] = value
        return value

    option = click.option(
        "--json", "as_json", is_flag=True, callback=store_flag, help="Answer in JSON, for programs; errors too."
    )
    return option(command)


def service_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command --url, --key-file, --timeout, --retry-timeout, --json, and a `RemoteService` as first argument."""

    @click.option(
        "--url",
        envvar="DL_URL",
        default=DEFAULT_URL,
        type=option_type(parse_url),
        metavar="URL",
        show_default=True,
        show_envvar=True,
        help="The address of the service.",
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
        "--retry-timeout",
        type=click.FloatRange(min=0),
        default=RETRY_TIMEOUT_SEC,
        show_default=True,
        metavar="SECONDS",
        help="How long to repeat a request that gets no answer, where that is safe; 0: send it once.",
    )
    @click.option("--patience", "former_retry_timeout", type=click.FloatRange(min=0), hidden=True)
    @click.option(
        "--key-file",
        envvar="DL_API_KEY_FILE",
        type=click.File("r", encoding="utf-8"),
        metavar="FILE",
        help="The file with the API key, if the service asks for one; else DL_API_KEY.  [DL_API_KEY_FILE]",
    )
    @click.option("--key", envvar="DL_API_KEY", hidden=True, callback=_reject_key_argument)
    @json_option
    @functools.wraps(command)
    def with_service(
        *,
        url: str,
        timeout: float,
        retry_timeout: float,
        former_retry_timeout: float | None,
        key: str | None,
        key_file: IO[str] | None,
        as_json: bool,
        **arguments: Any,
    ) -> None:
        from dataloader.client import Client  # noqa: PLC0415 - `requests` is loaded only where it is used

        if former_retry_timeout is not None:
            retry_timeout = former_retry_timeout
            click.echo("Warning: use --retry-timeout; its old name will be removed.", err=True)
        notice = OutageNotice("trying again …", lambda line: None if as_json else click.echo(line, err=True))
        client = Client(
            url, timeout_sec=timeout, retry_timeout_sec=retry_timeout, key=_read_key(key, key_file), on_retry=notice
        )
        is_typed = click.get_current_context().get_parameter_source("url") is ParameterSource.COMMANDLINE
        try:
            command(RemoteService(client, as_json, f" --url {client.url}" if is_typed else ""), **arguments)
        except KeyError as error:
            raise ServiceFault(
                f"{client.url} gave an answer without the field {error}: not a dataloader, or another version of it"
            ) from error

    return with_service


def _reject_key_argument(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if ctx.get_parameter_source("key") is ParameterSource.COMMANDLINE:
        raise click.UsageError("every user of this machine can read a command line; use --key-file or DL_API_KEY")
    return value


def _read_key(value: str | None, file: IO[str] | None) -> str | None:
    try:
        if file is not None:
            return parse_api_key(file.read(_MAX_KEY_LENGTH))
        return None if value is None else parse_api_key(value)
    except ValueError as error:
        raise click.UsageError(str(error)) from None  # the cause could show what is in the file
