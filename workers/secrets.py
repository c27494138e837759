"""Secrets that args refer to: found when a run begins, in this process alone, and hidden in all that the run says.

A secret is a variable DL_SECRET_<NAME> (its name in capitals, with _ for what is no letter or digit), or else a file of
that name in a folder, as containers are given them; a file is read anew for each run, so that it can be changed.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from app import log
from app.queue.job import Settlement
from pipelines.references import WORD, BadReference, put_in, references
from workers.outcome import Ending, HandedBack, Left

MASK = "***"
_SHORTEST = 4  # a shorter one cannot be hidden: it is in half of all texts
_SHORTEST_LINE = 8  # likewise of a part
_LARGEST = 65_536
_THE_REST = "*"


class NoSecret(Exception):
    """A secret is not there, or is none that can be used: trying again would not help."""


@dataclass(frozen=True)
class Vault:
    """Where secrets are looked for."""

    variables: Mapping[str, str] = field(default_factory=dict, repr=False)  # with their prefix
    folder: Path | None = None
    tasks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # secret → patterns; see `given`

    def given(self, name: str, task: str) -> str:
        """The secret for the args of a job, which whoever asked for the job has chosen. Raises NoSecret, where it is
        not for this task: what is said for it counts, else what is said for "*", else it is for all."""
        welcome = self.tasks.get(name, self.tasks.get(_THE_REST))
        if welcome is not None and not any(fnmatchcase(task, pattern) for pattern in welcome):
            raise NoSecret(f"the secret {name!r} is not for the task {task!r}; DL_SECRETS_ALLOW says for which it is")
        return self.read(name)

    def read(self, name: str) -> str:
        variable = variable_of(name)
        value = self.variables.get(variable)
        if value is None:
            value = self._of_a_file(name, variable)
        if len(value) < _SHORTEST:
            raise NoSecret(f"the secret {name!r} has fewer than {_SHORTEST} characters, and could not be hidden")
        return value

    def _of_a_file(self, name: str, variable: str) -> str:
        if self.folder is None:
            raise NoSecret(f"there is no secret {name!r}: the worker has no variable {variable}, and no DL_SECRETS_DIR")
        try:
            # The name has neither slash nor a dot in front, so that it stays in the folder.
            with (self.folder / name).open("rb") as file:
                content = file.read(_LARGEST + 1)
        except OSError as error:
            why = f"{error.strerror} (no variable {variable} either)"
            raise NoSecret(f"there is no secret {name!r} in DL_SECRETS_DIR: {why}") from None
        if len(content) > _LARGEST:
            raise NoSecret(f"the secret {name!r} is larger than {_LARGEST} bytes")
        try:
            return content.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise NoSecret(f"the secret {name!r} is no text in UTF-8") from None


def variable_of(name: str) -> str:
    return "DL_SECRET_" + re.sub(r"[^A-Z0-9]", "_", name.upper())


NO_VAULT = Vault()


class Veil:
    """Hides the values of secrets, in whatever a run says."""

    def __init__(self, secrets: Mapping[str, str] | None = None) -> None:
        self._secrets = dict(secrets or {})
        forms = {form for value in self._secrets.values() for form in _forms(value)}
        self.forms = sorted(forms, key=len, reverse=True)  # one may be a part of another

    def __bool__(self) -> bool:
        return bool(self._secrets)

    @property
    def secrets(self) -> Mapping[str, str]:
        """By name."""
        return self._secrets

    def text(self, text: str) -> str:
        for form in self.forms:
            text = text.replace(form, MASK)
        return text

    def value(self, value: Any) -> Any:
        """JSON data without them; the very same, if nothing is to be hidden."""
        if not self.forms:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.value(part) for key, part in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.value(part) for part in value]
        if value is None or isinstance(value, bool):
            return value
        told = str(value)  # a number may be one; of anything else the text is what is kept
        return MASK if told in self.forms else value if isinstance(value, int | float) else self._kept(value, told)

    def _kept(self, value: Any, told: str) -> Any:
        hidden = self.text(told)
        return value if hidden == told else hidden

    def referring(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Args for another job: where a secret stands as it is, a reference to it. Raises ValueError for a text that
        holds one among other things: it would be stored in the clear."""
        return {key: self._referring(value) for key, value in args.items()}

    def _referring(self, value: Any) -> Any:
        if isinstance(value, str):
            for name, secret in self._secrets.items():
                if value == secret:
                    return {WORD: name}
            if self.text(value) != value:
                raise ValueError(
                    "the args of a follow-up hold the value of a secret within a text; hand on the reference to it"
                )
            return value
        if isinstance(value, Mapping):
            return {key: self._referring(part) for key, part in value.items()}
        return [self._referring(part) for part in value] if isinstance(value, list | tuple) else value

    def ending(self, end: Ending) -> Ending:
        if not self:
            return end
        match end:
            case Settlement():
                return replace(
                    end,
                    error=end.error and self.text(end.error),
                    traceback=end.traceback and self.text(end.traceback),
                    result=self.value(end.result),
                    notes=self.value(end.notes),
                )
            case HandedBack(why, left):
                return HandedBack(why, Left(left.progress, left.checkpoint, self.value(left.notes)))
            case _:
                return end


def uncover(args: dict[str, Any], vault: Vault, task: str) -> tuple[dict[str, Any], Veil]:
    """The args of a job of this task with their secrets in them, and the veil over these. Raises NoSecret. For as long
    as the veil is there no line of any log of this process shows them."""
    try:
        names = {name for _, name in references(args)}
    except BadReference as error:
        raise NoSecret(f"args: {error}") from None
    if not names:
        return args, NOTHING_HIDDEN
    found = {name: vault.given(name, task) for name in sorted(names)}
    return put_in(args, found.__getitem__), veiled(found)


def veiled(secrets: Mapping[str, str]) -> Veil:
    """The veil over these, which hides them from the process's logs too."""
    veil = Veil(secrets)
    log.hide(veil.forms, veil)
    return veil


def scrubbed(end: Ending) -> Ending:
    """Without the passwords that drivers and URLs bring into errors, whosever they are."""
    if not isinstance(end, Settlement) or (end.error is None and end.traceback is None):
        return end
    return replace(end, error=end.error and log.scrub(end.error), traceback=end.traceback and log.scrub(end.traceback))


def _forms(value: str) -> set[str]:
    """As it is, line by line, and as others write it: JSON, a URL, a traceback, base64."""
    lines = {line.strip() for line in value.splitlines()} if "\n" in value else set()
    whole = {value, *(line for line in lines if len(line) >= _SHORTEST_LINE)}
    written = {
        form
        for text in whole
        for form in (
            json.dumps(text)[1:-1],
            json.dumps(text, ensure_ascii=False)[1:-1],
            quote(text, safe=""),
            quote_plus(text),
            repr(text)[1:-1],
            base64.b64encode(text.encode()).decode().rstrip("="),
        )
    }
    return {form for form in whole | written if len(form) >= _SHORTEST}


NOTHING_HIDDEN = Veil()
__all__ = [
    "NOTHING_HIDDEN",
    "NO_VAULT",
    "WORD",
    "NoSecret",
    "Vault",
    "Veil",
    "scrubbed",
    "uncover",
    "variable_of",
    "veiled",
]
