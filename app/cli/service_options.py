"""Commands that send requests to a running service: their options, and how they print."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, Any
from uuid import UUID

import click
from click.core import ParameterSource

from dataloader._address import DEFAULT_URL, RETRY_TIMEOUT_SEC, parse_url
from dataloader.app.cli import text
from dataloader.app.cli.parsing import (
    ARGS_META_KEY,
    SECONDS,
    TEXT_FILE,
    PartOfId,
    Seconds,
    json_option,
    option_type,
    without_none,
)
from dataloader.app.cli.tables import Table
from dataloader.errors import NotFound, ServiceFault, ServiceUnavailable

if TYPE_CHECKING:
    from dataloader import Client

_MAX_KEY_LENGTH = 1000  # characters read from a key file
COMMAND_META_KEY = "dataloader.app.cli.command"  # in the context's meta: the command whose request is sent
# Fields of the API that no option is named after.
_OPTIONS_OF_FIELDS = {
    "expression": ("--cron", "--every"),
    "per_sec": ("--rate",),
    "slices": ("--from", "--to", "--partition-key"),
    "slices.from": ("--from",),
    "slices.list": ("--partition-key",),
    "slices.to": ("--to",),
    "slices.unit": ("--unit",),
    "slices.zone": ("--zone",),
    "url": ("--to", "ADDRESS"),
}


class OutageNotice:
    """Prints why the service does not answer, each new reason once: a silent prompt looks like a hang."""

    def __init__(self, ending: str, print_line: Callable[[str], None]) -> None:
        self._ending, self._print_line, self.last_reason = ending, print_line, ""

    def __call__(self, outage: ServiceUnavailable) -> None:
        if str(outage) != self.last_reason:
            self.last_reason = str(outage)
            self._print_line(f"{outage}; {self._ending}")


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
        body = without_none(changes)
        if not body:
            raise click.UsageError("nothing to change; see --help for the options")
        return self.client.request("PATCH", path, body=body)

    def delete(self, path: str) -> Any:
        return self.client.request("DELETE", path)

    def find_jobs(self, part: PartOfId) -> list[text.Payload]:
        """Return the jobs whose ids have this part."""
        found: list[text.Payload] = self.get("/api/v1/jobs/find", id=part.text)["jobs"]
        return found

    def whole_job_id(self, part: PartOfId) -> UUID:
        """Return the id of the only job whose id has this part. Raises NotFound or UsageError."""
        found = self.find_jobs(part)
        if len(found) == 1:
            return UUID(found[0]["job_id"])
        if not found:
            raise NotFound(404, {"code": "job_not_found", "detail": f"no job has an id like {part.text}"})
        ids = ", ".join(job["job_id"] for job in found)
        raise click.UsageError(f"{part.text} is not the id of one job; there are {ids}")

    def print_warnings(self, payload: text.Payload) -> None:
        """Print why a request that was done may not be what its caller meant; JSON has it."""
        for warning in payload.get("warnings") or () if not self.as_json else ():
            click.echo(f"Warning: {text.one_line(str(warning))}", err=True)

    def print_payload(self, payload: object, *lines: str) -> None:
        click.echo(text.json_text(payload) if self.as_json else "\n".join(lines))

    def print_list(self, payload: text.Payload, field: str, table: Table) -> None:
        table.print(payload, field, as_json=self.as_json)


def _reject_key_argument(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if ctx.get_parameter_source("key") is ParameterSource.COMMANDLINE:
        raise click.UsageError("every user of this machine can read a command line; use --key-file or DL_API_KEY")
    return value


@click.command()
@click.option("--url", envvar="DL_URL", default=DEFAULT_URL, type=option_type(parse_url),
              show_default=True, show_envvar=True, help="The address of the service.")  # fmt: skip
@click.option("--timeout", type=Seconds(min_open=True), default=10, show_default=True,
              help="How long to wait for one answer.")  # fmt: skip
@click.option("--retry-timeout", type=SECONDS, default=RETRY_TIMEOUT_SEC, show_default=True,
              help="How long to repeat a request that gets no answer, where that is safe; 0: once.")  # fmt: skip
@click.option("--patience", "former_retry_timeout", type=SECONDS, hidden=True)
@click.option("--key-file", envvar="DL_API_KEY_FILE", type=TEXT_FILE,
              help="The file with the API key, if one is needed; else DL_API_KEY.  [DL_API_KEY_FILE]")  # fmt: skip
@click.option("--key", envvar="DL_API_KEY", hidden=True, callback=_reject_key_argument)
@json_option
def _connect(  # the options are those of every `RemoteCommand`
    *,
    url: str,
    timeout: float,
    retry_timeout: float,
    former_retry_timeout: float | None,
    key: str | None,
    key_file: IO[str] | None,
    as_json: bool,
) -> RemoteService:
    from dataloader.client import Client  # noqa: PLC0415 - `requests` is loaded only where it is used

    if former_retry_timeout is not None:
        retry_timeout = former_retry_timeout
        click.echo("Warning: use --retry-timeout; its old name will be removed.", err=True)
    notice = OutageNotice("trying again …", lambda line: None if as_json else click.echo(line, err=True))
    try:
        key = key if key_file is None else key_file.read(_MAX_KEY_LENGTH)
        client = Client(url, timeout_sec=timeout, retry_timeout_sec=retry_timeout, key=key, on_retry=notice)
    except ValueError as error:
        raise click.UsageError(str(error)) from None  # the cause could show what is in the file
    is_typed = click.get_current_context().get_parameter_source("url") is ParameterSource.COMMANDLINE
    return RemoteService(client, as_json, f" --url {client.url}" if is_typed else "")


class RemoteCommand(click.Command):
    """A command that gets a `RemoteService` as `service`, and the options that say which and how."""

    def __init__(self, name: str | None, *, params: list[click.Parameter] | None = None, **settings: Any) -> None:
        super().__init__(name, params=[*(params or []), *_connect.params], **settings)

    def invoke(self, ctx: click.Context) -> Any:
        assert _connect.callback is not None  # noqa: S101 - it is the function above
        service = _connect.callback(**{param.name: ctx.params.pop(param.name) for param in _connect.params})
        ctx.params["service"] = service
        ctx.meta[COMMAND_META_KEY] = ctx.command
        try:
            for name, value in ctx.params.items():
                if isinstance(value, PartOfId):
                    ctx.params[name] = service.whole_job_id(value)
            return super().invoke(ctx)
        except KeyError as error:
            reason = "not a dataloader, or another version of it"
            raise ServiceFault(f"{service.client.url} gave an answer without the field {error}: {reason}") from error


class ListGroup(click.Group):
    """A group that lists when no subcommand is given. `former` has the names that its commands had in a release."""

    def __init__(self, *args: Any, former: Mapping[str, str] | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._former = former or {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        needs_list = not args or (args[0].startswith("-") and args[0] not in ("-h", "--help"))
        return super().parse_args(ctx, ["list", *args] if needs_list else args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, self._former.get(cmd_name, cmd_name))


class RemoteGroup(ListGroup):
    """A group of commands that send requests."""

    command_class = RemoteCommand


create_option = click.option("--create", is_flag=True, help="Also if nothing is known of this name yet.")
remote_command = partial(click.command, cls=RemoteCommand)


def _option_of_argument(path: str) -> str:
    """The option that gave this argument; of one that was not given the last option that gave another one."""
    given: list[tuple[str, list[str]]] = click.get_current_context().meta.get(ARGS_META_KEY, [])
    name = re.split(r"[.\[]", path, maxsplit=1)[0]
    return next((option for option, names in reversed(given) if name in names), given[-1][0] if given else "--arg")


def option_of_field(command: click.Command, field: str) -> str:
    """What a user of the command calls a field of a request: `--threshold`, `--arg day`, or the field itself."""
    if field == "args" or field.startswith(("args.", "args[")):
        options = {option for param in command.params for option in param.opts}
        return f"{_option_of_argument(field[5:])} {field[5:]}".rstrip() if "--arg" in options else field
    names = {name for param in command.params for name in param.opts} | {
        param.make_metavar(click.Context(command)) for param in command.params if isinstance(param, click.Argument)
    }
    if known := [name for name in _OPTIONS_OF_FIELDS.get(field, ()) if name in names]:
        return ", ".join(known)
    last = field.rpartition(".")[2]
    for param in command.params:
        if param.name == last:
            return param.opts[0] if isinstance(param, click.Option) else param.make_metavar(click.Context(command))
    return field
