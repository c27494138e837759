"""What a shell is told: the exit codes, and what each error says and suggests."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from app.client import Conflict, FieldError, NotAllowed, NotFound, Refused, ServiceFault, ServiceUnavailable
from app.errors import (
    ConfigError,
    DatabaseUnavailable,
    DataloaderError,
    EmbeddedServerError,
    JobNotFound,
    KeyNotFound,
    PortTaken,
    ProgramMissing,
    SchemaError,
)
from app.log import scrub


class Exit(IntEnum):
    """Numbers from 64 on are those of sysexits.h."""

    OK = 0
    NOT_DONE = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    DOUBTFUL = 5
    SCHEMA = 65
    UNAVAILABLE = 69
    FAULT = 70
    EMBEDDED = 71
    CONFIG = 78
    INTERRUPTED = 130


MEANING = {
    Exit.OK: "done; with `--watch`, and `run`: the job succeeded",
    Exit.NOT_DONE: "with `--watch`, and `run`: the job ended as failed, canceled or lost; "
    "`tasks`: a module cannot be imported; `doctor`: something is wrong",
    Exit.USAGE: "the command line is wrong",
    Exit.NOT_FOUND: "there is no such job, or no such key",
    Exit.REFUSED: "the service refused: something is invalid, or in conflict with what is there",
    Exit.DOUBTFUL: "`doctor`: something is doubtful, and nothing wrong",
    Exit.SCHEMA: "the tables in the database are not those of this version",
    Exit.UNAVAILABLE: "the service or the database does not answer; `serve`: the port is taken; `psql`: there is none",
    Exit.FAULT: "the service failed, or something else answers at its address",
    Exit.EMBEDDED: "the embedded PostgreSQL cannot be started",
    Exit.CONFIG: "the configuration has faults",
    Exit.INTERRUPTED: "ended by Ctrl-C",
}


@dataclass(frozen=True)
class Told:
    """An error as a person and as a program are told it."""

    exit: Exit
    code: str
    detail: str
    errors: tuple[FieldError, ...] = ()
    remedy: str = ""


# The first line that fits counts: the narrower class stands above the wider one.
TABLE: tuple[tuple[type[DataloaderError], Exit, str, str], ...] = (
    (ConfigError, Exit.CONFIG, "config", "`dataloader config --docs` describes every variable."),
    (SchemaError, Exit.SCHEMA, "schema", ""),
    (
        DatabaseUnavailable,
        Exit.UNAVAILABLE,
        "database_unavailable",
        "Start the server, or correct DL_DB_DSN or PG_HOST: `dataloader config` shows what is in force.",
    ),
    (PortTaken, Exit.UNAVAILABLE, "port_taken", ""),
    (ProgramMissing, Exit.UNAVAILABLE, "program_missing", ""),
    (EmbeddedServerError, Exit.EMBEDDED, "embedded_server", "DL_DB_DSN names a server of your own instead."),
    (
        ServiceUnavailable,
        Exit.UNAVAILABLE,
        "service_unavailable",
        "Start it with `dataloader serve`, or give its address with --url or DL_URL.",
    ),
    (ServiceFault, Exit.FAULT, "service_fault", "Is --url the address of a dataloader? If so, its log says more."),
    (NotFound, Exit.NOT_FOUND, "not_found", "`dataloader jobs` lists the newest."),
    (JobNotFound, Exit.NOT_FOUND, "not_found", "`dataloader jobs` lists the newest."),
    (NotAllowed, Exit.REFUSED, "not_allowed", "DL_API_KEY or --key-file says which key to send."),
    (KeyNotFound, Exit.NOT_FOUND, "not_found", ""),
    (Conflict, Exit.REFUSED, "conflict", ""),
    (Refused, Exit.REFUSED, "invalid", ""),
    (DataloaderError, Exit.REFUSED, "refused", ""),
)


def told(error: DataloaderError) -> Told:
    exit_, code, remedy = next((e, c, r) for kind, e, c, r in TABLE if isinstance(error, kind))
    if isinstance(error, Refused):
        return Told(exit_, error.code, error.detail, error.errors, remedy)
    # No error may show a password, whichever library has put one into its message.
    return Told(exit_, code, scrub(str(error)), remedy=remedy)
