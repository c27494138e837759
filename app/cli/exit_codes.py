"""Exit codes, and the message and remedy of each error."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from dataloader import errors as client_errors
from dataloader.app import errors


class ExitCode(IntEnum):
    """docs/cli.md says what each means. Numbers from 64 on are those of sysexits.h."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    WARNINGS = 5
    SCHEMA = 65
    UNAVAILABLE = 69
    SERVICE_FAULT = 70
    EMBEDDED = 71
    CONFIG = 78
    INTERRUPTED = 130


@dataclass(frozen=True)
class ErrorReport:
    """What is printed about an error."""

    exit_code: ExitCode
    code: str
    detail: str
    errors: tuple[client_errors.FieldError, ...] = ()
    remedy: str = ""


_JOBS_REMEDY = "`dataloader jobs` lists the newest."
_NAME_REMEDY = "With --create it is done all the same: the name need not exist yet."
_DATABASE_REMEDY = "Start the server, or correct DL_DB_DSN or PG_HOST: `dataloader config` shows what is in force."
_READ_ONLY_REMEDY = (
    "The server is a standby: name the primary; or default_transaction_read_only is on: ALTER DATABASE … RESET it."
)
_READ_ONLY_TRANSACTION = "25006"  # SQLSTATE
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
        if remedy == _JOBS_REMEDY and error.code != "job_not_found":
            remedy = _NAME_REMEDY if error.code == "name_not_found" else ""
        return ErrorReport(exit_, error.code, error.detail, error.errors, remedy)
    if getattr(error.__cause__, "pgcode", None) == _READ_ONLY_TRANSACTION:
        remedy = _READ_ONLY_REMEDY
    from dataloader.app.log import redact_text  # noqa: PLC0415 - logging is not for commands that succeed

    # No error may show a password, whichever library has put one into its message.
    return ErrorReport(exit_, code, redact_text(str(error)), remedy=remedy)
