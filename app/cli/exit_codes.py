"""Exit codes, and the message and remedy of each error."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from app import errors
from app.log import redact_text
from dataloader import errors as client_errors


class ExitCode(IntEnum):
    """Numbers from 64 on are those of sysexits.h."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Self:
        member = int.__new__(cls, code)
        member._value_, member.meaning = code, meaning
        return member

    OK = 0, "done; with `--watch`, and `run`: the job succeeded"
    FAILURE = (
        1, "with `--watch`, and `run`: the job ended as failed, canceled or lost; "
        "`tasks`: a module cannot be imported; `doctor`: there are errors",
    )  # fmt: skip
    USAGE = 2, "the command line is wrong"
    NOT_FOUND = 3, "the job or key does not exist"
    REFUSED = 4, "the service rejected the request: a value is invalid, or conflicts with existing data"
    WARNINGS = 5, "`doctor`: there are warnings and no errors"
    SCHEMA = 65, "the tables in the database are of another version"
    UNAVAILABLE = (
        69, "the service or the database does not respond; `serve`: the port is taken; "
        "`psql`: the program is not installed",
    )  # fmt: skip
    SERVICE_FAULT = 70, "the service failed, or another service responds at its address"
    EMBEDDED = 71, "the embedded PostgreSQL cannot be started"
    CONFIG = 78, "the configuration has errors"
    INTERRUPTED = 130, "ended by Ctrl-C"


@dataclass(frozen=True)
class ErrorReport:
    """What is printed about an error."""

    exit_code: ExitCode
    code: str
    detail: str
    errors: tuple[client_errors.FieldError, ...] = ()
    remedy: str = ""


_JOBS_REMEDY = "`dataloader jobs` lists the newest."
_DATABASE_REMEDY = "Start the server, or correct DL_DB_DSN or PG_HOST: `dataloader config` shows what is in force."
_SERVICE_REMEDY = "Start it with `dataloader serve`, or give its address with --url or DL_URL."
_FAULT_REMEDY = "Is --url the address of a dataloader? If so, its log says more."
# The first match counts: a subclass precedes its base.
BY_EXCEPTION: tuple[tuple[type[Exception], ExitCode, str, str], ...] = (
    (errors.ConfigError, ExitCode.CONFIG, "config", "`dataloader config --docs` describes every variable."),
    (errors.SchemaError, ExitCode.SCHEMA, "schema", ""),
    (errors.DatabaseUnavailable, ExitCode.UNAVAILABLE, "database_unavailable", _DATABASE_REMEDY),
    (errors.PortTaken, ExitCode.UNAVAILABLE, "port_taken", ""),
    (errors.ProgramMissing, ExitCode.UNAVAILABLE, "program_missing", ""),
    (errors.EmbeddedServerError, ExitCode.EMBEDDED, "embedded_server", "DL_DB_DSN names a server of your own instead."),
    (client_errors.ServiceUnavailable, ExitCode.UNAVAILABLE, "service_unavailable", _SERVICE_REMEDY),
    (client_errors.ServiceFault, ExitCode.SERVICE_FAULT, "service_fault", _FAULT_REMEDY),
    (client_errors.NotFound, ExitCode.NOT_FOUND, "not_found", _JOBS_REMEDY),
    (errors.JobNotFound, ExitCode.NOT_FOUND, "not_found", _JOBS_REMEDY),
    (client_errors.NotAllowed, ExitCode.REFUSED, "not_allowed", "DL_API_KEY or --key-file says which key to send."),
    (errors.ApiKeyNotFound, ExitCode.NOT_FOUND, "not_found", ""),
    (client_errors.Conflict, ExitCode.REFUSED, "conflict", ""),
    (client_errors.Refused, ExitCode.REFUSED, "invalid", ""),
    (errors.DataloaderError, ExitCode.REFUSED, "refused", ""),
)


def error_report(error: errors.DataloaderError | client_errors.ClientError) -> ErrorReport:
    exit_, code, remedy = next((e, c, r) for kind, e, c, r in BY_EXCEPTION if isinstance(error, kind))
    if isinstance(error, client_errors.Refused):
        return ErrorReport(exit_, error.code, error.detail, error.errors, remedy)
    # No error may show a password, whichever library has put one into its message.
    return ErrorReport(exit_, code, redact_text(str(error)), remedy=remedy)
