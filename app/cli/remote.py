"""Commands that send requests to a running service.

Many are one operation of the API, and say what is printed of its answer:

    limits = RemoteGroup("limits", help="Manage limits.")
    limits.add("list", "list_limits", LIMITS)                        # a table
    limits.add("delete", "delete_limit", "Limit {name} is deleted.")  # a sentence with values of the request and answer

Their options, help and limits are those of the operation's fields. What needs more is a function, which may return an
exit code:

    @limits.command("set", operation="set_limit")
    def set_limit(service: RemoteService, **fields: Any) -> None:
        service.perform("set_limit", _limit_line, **fields)
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, Any
from uuid import UUID

import click
from click.core import ParameterSource

from dataloader._address import DEFAULT_URL, RETRY_TIMEOUT_SEC, parse_url
from dataloader.app.cli import operations, text
from dataloader.app.cli.output import Table, is_json, print_payload
from dataloader.app.cli.parsing import (
    ARGS_META_KEY,
    SECONDS,
    TEXT_FILE,
    Option,
    Parsed,
    PartOfId,
    json_option,
    option,
    seconds,
)
from dataloader.errors import FieldError, NotFound, ServiceFault, ServiceUnavailable

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from dataloader import Client

# What is printed of an answer: a table, lines with names of values, or a function that makes a line or several.
Printed = Table | str | Callable[[Any], str | Iterable[str]]

_PATTERN_MESSAGE = "String should match pattern"  # what the service says about a text with a regular expression
_MAX_KEY_LENGTH = 1000  # characters read from a key file
CONTEXT_META_KEY = "dataloader.app.cli.context"  # in the context's meta: that of the command whose request is sent
# Fields of the API that no option is named after, and what gives a field that has parts.
_OPTIONS_OF_FIELDS = {
    "expression": ("--cron", "--every"),
    "per_sec": ("--rate",),
    "slices": ("--from", "--to", "--partition-key"),
    "slices.from": ("--from",),
    "slices.list": ("--partition-key",),
    "slices.to": ("--to",),
    "slices.unit": ("--unit",),
    "slices.zone": ("--zone",),
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
    """A running service."""

    client: Client
    url_hint: str  # the option that a suggested command needs to reach the same service

    def send(self, name: str, /, *, repeatable: bool = False, body: text.Payload | None = None, **values: Any) -> Any:
        """Perform an operation of the API with these values of its fields; None is left out. `body` replaces those of
        the body."""
        operation = operations.operation(name)
        path, query, made = operation.request(values)
        body = made if body is None else body
        if operation.method == "PATCH" and not body:
            raise click.UsageError("nothing to change; see --help for the options")
        repeatable = repeatable or operation.method in ("GET", "PUT")
        answer = self.client.request(operation.method, path, query=query, body=body, repeatable=repeatable)
        if operation.method != "GET" and "strict" not in values:  # with --create they are expected
            self._print_warnings(answer)
        return answer

    def perform(self, name: str, prints: Printed, /, **values: Any) -> Any:
        """Perform an operation as `send` does, and print what `prints` says of its answer."""
        answer = self.send(name, **values)
        if isinstance(prints, Table):
            prints.print(answer)
            return answer
        lines: str | Iterable[str] = ()
        if isinstance(prints, str):
            shown = {field: text.one_line(str(value)) for field, value in {**values, **answer}.items()}
            lines = prints.format(**shown).splitlines()
        elif not is_json():
            lines = prints(answer)
        print_payload(answer, *([lines] if isinstance(lines, str) else lines))
        return answer

    def find_jobs(self, part: PartOfId) -> list[text.Payload]:
        """Return the jobs whose ids have this part."""
        found: list[text.Payload] = self.send("find_jobs", id=part.text)["jobs"]
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

    @staticmethod
    def _print_warnings(answer: text.Payload) -> None:
        """Print why a request that was done may not be what its caller meant; JSON has it."""
        for warning in answer.get("warnings") or () if not is_json() else ():
            click.echo(f"Warning: {text.one_line(str(warning))}", err=True)


def _reject_key_argument(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if ctx.get_parameter_source("key") is ParameterSource.COMMANDLINE:
        raise click.UsageError("every user of this machine can read a command line; use --key-file or DL_API_KEY")
    return value


@click.command()
@option("--url", "service_url", envvar="DL_URL", default=DEFAULT_URL, type=Parsed("url", parse_url),
        show_default=True, show_envvar=True, help="The address of the service.")  # fmt: skip
@option("--timeout", type=seconds(min_open=True), default=10, show_default=True,
        help="How long to wait for one answer.")  # fmt: skip
@option("--retry-timeout", type=SECONDS, default=RETRY_TIMEOUT_SEC, show_default=True,
        help="How long to repeat a request that gets no answer, where that is safe; 0: once.")  # fmt: skip
@option("--patience", "former_retry_timeout", type=SECONDS, hidden=True)
@option("--key-file", envvar="DL_API_KEY_FILE", type=TEXT_FILE,
        help="The file with the API key, if one is needed; else DL_API_KEY.  [DL_API_KEY_FILE]")  # fmt: skip
@option("--key", envvar="DL_API_KEY", hidden=True, callback=_reject_key_argument)
@json_option
def _connect(  # the options are those of every `RemoteCommand`
    *,
    service_url: str,
    timeout: float,
    retry_timeout: float,
    former_retry_timeout: float | None,
    key: str | None,
    key_file: IO[str] | None,
) -> RemoteService:
    from dataloader.client import Client  # noqa: PLC0415 - `requests` is loaded only where it is used

    if former_retry_timeout is not None:
        retry_timeout = former_retry_timeout
        click.echo("Warning: use --retry-timeout; its old name will be removed.", err=True)
    notice = OutageNotice("trying again …", lambda line: None if is_json() else click.echo(line, err=True))
    try:
        key = key if key_file is None else key_file.read(_MAX_KEY_LENGTH)
        client = Client(service_url, timeout_sec=timeout, retry_timeout_sec=retry_timeout, key=key, on_retry=notice)
    except ValueError as error:
        raise click.UsageError(str(error)) from None  # the cause could show what is in the file
    is_typed = click.get_current_context().get_parameter_source("service_url") is ParameterSource.COMMANDLINE
    return RemoteService(client, f" --url {client.url}" if is_typed else "")


def _check_sendable(param: click.Parameter, value: Any) -> None:
    """Raises UsageError for a text or a number that no request can have."""
    for part in value if isinstance(value, tuple) else (value,):
        if isinstance(part, float) and not math.isfinite(part):
            raise click.UsageError(f"{param.opts[0]}: {part} is no number that can be sent")
        if isinstance(part, str) and any("\ud800" <= char <= "\udfff" for char in part):
            raise click.UsageError(f"{param.opts[0]}: {part!r} is no UTF-8")


class RemoteCommand(click.Command):
    """A command that gets a `RemoteService`, and the options that say which. With an operation it has those of its
    fields too, and without a function it performs the operation and prints what `prints` says.

    `only`, `omit`, `arguments` and `options` choose and rename fields, as in `operations.parameters`; `fixed` has the
    values of fields that are no options. An option of the function replaces that of the field.
    """

    def __init__(
        self,
        name: str | None,
        *,
        operation: str = "",
        prints: Printed | None = None,
        fixed: Mapping[str, Any] | None = None,
        repeatable: bool = False,
        only: str | None = None,
        omit: str = "",
        arguments: Sequence[str] = (),
        options: operations.Overrides | None = None,
        params: list[click.Parameter] | None = None,
        **settings: Any,
    ) -> None:
        own, made = params or [], []
        self._operation, self._prints, self._fixed = operation, prints, {**(fixed or {}), "repeatable": repeatable}
        if operation:
            skip = {param.name or "" for param in own} | self._fixed.keys()
            made = [*operations.parameters(
                operation, only=only, omit=omit, arguments=arguments, options=options, skip=skip
            )]  # fmt: skip
            settings["help"] = settings.get("help") or f"{operations.operation(operation).summary}."
        # An argument of the path precedes those of the function.
        made.sort(key=lambda param: isinstance(param, click.Option))
        super().__init__(name, params=[*made, *own, *_connect.params], **settings)

    def invoke(self, ctx: click.Context) -> Any:
        assert _connect.callback is not None  # noqa: S101 - it is the function above
        names = [param.name for param in _connect.params if param.expose_value]
        service = _connect.callback(**{name: ctx.params.pop(name) for name in names})
        ctx.meta[CONTEXT_META_KEY] = ctx
        for param in self.params:
            _check_sendable(param, ctx.params.get(param.name or ""))
        try:
            for name, value in ctx.params.items():
                if isinstance(value, PartOfId):
                    ctx.params[name] = service.whole_job_id(value)
            if self._prints is not None:
                return service.perform(self._operation, self._prints, **ctx.params, **self._fixed)
            assert self.callback is not None  # noqa: S101 - or it would print something
            return ctx.invoke(self.callback, service, **ctx.params)
        except KeyError as error:
            reason = "not a dataloader, or another version of it"
            raise ServiceFault(f"{service.client.url} gave an answer without the field {error}: {reason}") from error


class ListGroup(click.Group):
    """A group that lists when no subcommand is given. `former` has the names that its commands had in a release."""

    def __init__(self, *args: Any, former: Mapping[str, str] | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._former = former or {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # A completion of an empty word needs the names of all subcommands.
        is_listed = not args and not ctx.resilient_parsing
        needs_list = is_listed or (bool(args) and args[0].startswith("-") and args[0] not in ("-h", "--help"))
        return super().parse_args(ctx, ["list", *args] if needs_list else args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, self._former.get(cmd_name, cmd_name))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = super().shell_complete(ctx, incomplete)
        listing = self.get_command(ctx, "list")
        if listing is not None and incomplete.startswith("-"):
            found += [item for item in listing.shell_complete(ctx, incomplete) if item.value != "--help"]
        return found


class RemoteGroup(ListGroup):
    """A group of commands that send requests."""

    command_class = RemoteCommand

    def add(self, name: str, operation: str, prints: Printed, **settings: Any) -> None:
        """Add a command that performs an operation."""
        self.add_command(RemoteCommand(name, operation=operation, prints=prints, **settings))


remote_command = partial(click.command, cls=RemoteCommand)
# The field `strict` as an option: without --create a name that nothing is known of is refused.
CREATE: Mapping[str, Any] = {
    "names": "--create",
    "callback": lambda _ctx, _param, value: None if value else True,
    "help": "Also if nothing is known of this name yet.",
}


def _option_of_argument(path: str) -> str:
    """The option that gave this argument; of one that was not given the last option that gave another one."""
    given: list[tuple[str, list[str]]] = click.get_current_context().meta.get(ARGS_META_KEY, [])
    name = re.split(r"[.\[]", path, maxsplit=1)[0]
    return next((option for option, names in reversed(given) if name in names), given[-1][0] if given else "--arg")


def _param_of_field(command: click.Command, field: str) -> tuple[click.Parameter, str] | None:
    """The option or argument that gives a field of a request, and the part of its value: of `limits.warehouse`
    --limits and `warehouse`, of `tags[0]` --tag and nothing."""
    params = {param.name or "": param for param in command.params}
    first, part = re.fullmatch(r"(\w*)(?:\[\d+\])?\.?(.*)", field, re.DOTALL).groups()  # type: ignore[union-attr]
    if (last := field.rpartition(".")[2]) in params:
        return params[last], ""
    return (params[first], part) if first in params else None


def option_of_field(ctx: click.Context, field: str) -> str:
    """What a user of the context's command calls a field of a request: `--threshold`, `--arg day`, or the field itself.
    Of the options that can give it in each other's place the one that was given."""
    options = {option.opts[0]: option.name or "" for option in ctx.command.params if isinstance(option, Option)}
    if "--arg" in options and (field == "args" or field.startswith(("args.", "args["))):
        return f"{_option_of_argument(field[5:])} {field[5:]}".rstrip()
    if known := [name for name in _OPTIONS_OF_FIELDS.get(field, ()) if name in options]:
        given = [name for name in known if ctx.get_parameter_source(options[name]) is ParameterSource.COMMANDLINE]
        return ", ".join(given if field == "expression" and given else known)
    if field == "body":
        return "the request"
    if (found := _param_of_field(ctx.command, field)) is None:
        return field
    param, part = found
    name = param.opts[0] if isinstance(param, Option) else param.metavar or param.human_readable_name.upper()
    return f"{name} {part}".rstrip()


def message_of_error(ctx: click.Context, error: FieldError) -> str:
    """A message of the service about a value. Of one that has not the form of its option: the help of that."""
    found = _param_of_field(ctx.command, error.field)
    if not error.message.startswith(_PATTERN_MESSAGE) or found is None or not isinstance(found[0], Option):
        return error.message
    return f"is no valid {found[0].metavar}. {found[0].help}"
