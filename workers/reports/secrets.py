"""Secrets that args refer to: resolved in the worker when an attempt starts, and redacted from all that it reports.

A secret is an environment variable DL_SECRET_<NAME> (the name in capitals, with _ for anything but letters and digits)
or a file of that name in a folder, as containers mount them. Files are read at each use, so that they can be rotated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dataloader.app import log
from dataloader.app.queue.job import Released, Settlement
from dataloader.pipelines.job_args import SECRET_KEY, BadReference, find_references, substitute
from dataloader.pipelines.json_values import is_array_or_number, plain_value
from dataloader.workers.outcome import Outcome

_MIN_LENGTH = 4  # a shorter one cannot be redacted: many texts contain it
_MAX_FILE_BYTES = 65_536


class SecretUnavailable(Exception):
    """The secret does not exist or cannot be used; a retry would not help."""


@dataclass(frozen=True)
class SecretStore:
    """Reads secrets."""

    variables: Mapping[str, str] = field(default_factory=dict, repr=False)  # with their prefix
    folder: Path | None = None
    task_patterns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by secret; "*" for those not listed

    def resolve_for_task(self, name: str, task: str) -> str:
        """Return a secret that a job's args name. Raises SecretUnavailable where the task is not allowed to use it:
        its own patterns count, else those of "*", else every task may."""
        patterns = self.task_patterns.get(name, self.task_patterns.get("*"))
        if patterns is not None and not any(fnmatchcase(task, pattern) for pattern in patterns):
            raise SecretUnavailable(
                f"the secret {name!r} is not for the task {task!r}; DL_TASK_SECRETS says for which it is"
            )
        return self.read(name)

    def read(self, name: str) -> str:
        variable = variable_name(name)
        value = self.variables.get(variable)
        if value is None:
            value = self._from_file(name, variable)
        if len(value) < _MIN_LENGTH:
            limit = f"fewer than {_MIN_LENGTH} characters"
            raise SecretUnavailable(f"the secret {name!r} has {limit}, and could not be hidden")
        return value

    def _from_file(self, name: str, variable: str) -> str:
        if self.folder is None:
            raise SecretUnavailable(
                f"there is no secret {name!r}: the worker has no variable {variable}, and no DL_SECRETS_DIR"
            )
        try:
            with (self.folder / name).open("rb") as file:  # the name cannot leave the folder: see job_args
                content = file.read(_MAX_FILE_BYTES + 1)
        except OSError as error:
            reason = f"{error.strerror} (no variable {variable} either)"
            raise SecretUnavailable(f"there is no secret {name!r} in DL_SECRETS_DIR: {reason}") from None
        if len(content) > _MAX_FILE_BYTES:
            raise SecretUnavailable(f"the secret {name!r} is larger than {_MAX_FILE_BYTES} bytes")
        try:
            return content.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise SecretUnavailable(f"the secret {name!r} is no text in UTF-8") from None


def variable_name(name: str) -> str:
    return "DL_SECRET_" + re.sub(r"[^A-Z0-9]", "_", name.upper())


class Redactor:
    """Replaces the values of secrets in what an attempt reports."""

    def __init__(self, secrets: Mapping[str, str] | None = None) -> None:
        self.secrets = dict(secrets or {})  # by name
        encodings = {form for value in self.secrets.values() for form in log.secret_forms(value)}
        self.encodings = sorted(encodings, key=len, reverse=True)  # one may contain another
        log.register_secret(self.encodings, self)  # as long as this lives, the process's own logs are redacted too

    def __bool__(self) -> bool:
        return bool(self.secrets)

    def redact_text(self, text: str) -> str:
        for encoding in self.encodings:
            text = text.replace(encoding, log.MASK)
        return text

    def redact_value(self, value: Any) -> Any:
        """Return JSON data without secrets; the same object if there is nothing to redact."""
        if not self.encodings or value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self.redact_text(value)
        if isinstance(value, Mapping):
            return {self.redact_text(str(key)): self.redact_value(item) for key, item in value.items()}
        if is_array_or_number(value):
            return self.redact_value(plain_value(value))
        if isinstance(value, list | tuple | set | frozenset):
            return [self.redact_value(item) for item in value]
        text = str(value)  # a number may be a secret; other objects are stored as text
        redacted = log.MASK if text in self.encodings else text
        if not isinstance(value, int | float):
            redacted = self.redact_text(redacted)
        return value if redacted == text else redacted

    def restore_references(self, value: Any) -> Any:
        """Return args for a follow-up job, with references in place of secrets. Raises ValueError for a text that
        contains a secret among other things: it would be stored in the clear."""
        if not self:
            return value  # args may be nested more deeply than a walk can go
        if isinstance(value, str):
            for name, secret in self.secrets.items():
                if value == secret:
                    return {SECRET_KEY: name}
            if self.redact_text(value) != value:
                raise ValueError(
                    "the args of a follow-up hold the value of a secret within a text; hand on the reference to it"
                )
            return value
        if isinstance(value, Mapping):
            return {key: self.restore_references(item) for key, item in value.items()}
        return [self.restore_references(item) for item in value] if isinstance(value, list | tuple) else value

    def redact_outcome(self, outcome: Outcome) -> Outcome:
        """Redact the attempt's secrets, and in errors passwords in URLs and connection strings too: drivers repeat
        them."""
        match outcome:
            case Settlement(error=error, traceback=traceback) if self or error is not None or traceback is not None:
                return replace(
                    outcome,
                    error=error and self.redact_text(log.redact_text(error)),
                    traceback=traceback and self.redact_text(log.redact_text(traceback)),
                    result=self.redact_value(outcome.result),
                    event_fields=self.redact_value(outcome.event_fields),
                )
            case Released(event_fields=fields) if self:
                return replace(outcome, event_fields=self.redact_value(fields))
            case _:
                return outcome


NO_REDACTION = Redactor()


def resolve_references(args: dict[str, Any], secret_store: SecretStore, task: str) -> tuple[dict[str, Any], Redactor]:
    """Return a task's args with their secrets, and a redactor of these. Raises SecretUnavailable."""
    try:
        names = {reference.name for _, reference in find_references(args) if reference.key == SECRET_KEY}
    except BadReference as error:
        raise SecretUnavailable(f"args: {error}") from None
    if not names:
        return args, NO_REDACTION
    secrets = {name: secret_store.resolve_for_task(name, task) for name in sorted(names)}
    return substitute(args, {SECRET_KEY: secrets}), Redactor(secrets)
