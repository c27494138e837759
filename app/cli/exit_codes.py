"""Exit codes, and the message and remedy of each error."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from app.errors import (
    ApiKeyNotFound,
    ConfigError,
    DatabaseUnavailable,
    DataloaderError,
    EmbeddedServerError,
    JobNotFound,
    PortTaken,
    ProgramMissing,
    SchemaError,
)
from app.log import redact_text
from dataloader.errors import (
    ClientError,
    Conflict,
    FieldError,
    NotAllowed,
    NotFound,
    Refused,
    ServiceFault,
    ServiceUnavailable,
)


class ExitCode(IntEnum):
    """Numbers from 64 on are those of sysexits.h."""

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


MEANINGS = {
    ExitCode.OK: "done; with `--watch`, and `run`: the job succeeded",
    ExitCode.FAILURE: "with `--watch`, and `run`: the job ended as failed, canceled or lost; "
    "`tasks`: a module cannot be imported; `doctor`: something is wrong",
    ExitCode.USAGE: "the command line is wrong",
    ExitCode.NOT_FOUND: "there is no such job, or no such key",
    ExitCode.REFUSED: "the service refused: something is invalid, or in conflict with what is there",
    ExitCode.WARNINGS: "`doctor`: something is doubtful, and nothing wrong",
    ExitCode.SCHEMA: "the tables in the database are not those of this version",
    ExitCode.UNAVAILABLE: "the service or the database does not answer; `serve`: the port is taken; `psql`: there is none",
    ExitCode.SERVICE_FAULT: "the service failed, or something else answers at its address",
    ExitCode.EMBEDDED: "the embedded PostgreSQL cannot be started",
    ExitCode.CONFIG: "the configuration has faults",
    ExitCode.INTERRUPTED: "ended by Ctrl-C",
}


@dataclass(frozen=True)
class ErrorReport:
    """What is printed about an error."""

    exit_code: ExitCode
    code: str
    detail: str
    errors: tuple[FieldError, ...] = ()
    remedy: str = ""


_JOBS_REMEDY = "`dataloader jobs` lists the newest."
_DATABASE_REMEDY = "Start the server, or correct DL_DB_DSN or PG_HOST: `dataloader config` shows what is in force."
_SERVICE_REMEDY = "Start it with `dataloader serve`, or give its address with --url or DL_URL."
_FAULT_REMEDY = "Is --url the address of a dataloader? If so, its log says more."
# The first match counts: a subclass precedes its base.
BY_EXCEPTION: tuple[tuple[type[Exception], ExitCode, str, str], ...] = (
    (ConfigError, ExitCode.CONFIG, "config", "`dataloader config --docs` describes every variable."),
    (SchemaError, ExitCode.SCHEMA, "schema", ""),
    (DatabaseUnavailable, ExitCode.UNAVAILABLE, "database_unavailable", _DATABASE_REMEDY),
    (PortTaken, ExitCode.UNAVAILABLE, "port_taken", ""),
    (ProgramMissing, ExitCode.UNAVAILABLE, "program_missing", ""),
    (EmbeddedServerError, ExitCode.EMBEDDED, "embedded_server", "DL_DB_DSN names a server of your own instead."),
    (ServiceUnavailable, ExitCode.UNAVAILABLE, "service_unavailable", _SERVICE_REMEDY),
    (ServiceFault, ExitCode.SERVICE_FAULT, "service_fault", _FAULT_REMEDY),
    (NotFound, ExitCode.NOT_FOUND, "not_found", _JOBS_REMEDY),
    (JobNotFound, ExitCode.NOT_FOUND, "not_found", _JOBS_REMEDY),
    (NotAllowed, ExitCode.REFUSED, "not_allowed", "DL_API_KEY or --key-file says which key to send."),
    (ApiKeyNotFound, ExitCode.NOT_FOUND, "not_found", ""),
    (Conflict, ExitCode.REFUSED, "conflict", ""),
    (Refused, ExitCode.REFUSED, "invalid", ""),
    (DataloaderError, ExitCode.REFUSED, "refused", ""),
)


def error_report(error: DataloaderError | ClientError) -> ErrorReport:
    exit_, code, remedy = next((e, c, r) for kind, e, c, r in BY_EXCEPTION if isinstance(error, kind))
    if isinstance(error, Refused):
        return ErrorReport(exit_, error.code, error.detail, error.errors, remedy)
    # No error may show a password, whichever library has put one into its message.
    return ErrorReport(exit_, code, redact_text(str(error)), remedy=remedy)
