"""Loads the settings from the environment and a `.env` file, and reports all errors together."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError
from pydantic_settings import DotEnvSettingsSource

from dataloader.app.config import checks
from dataloader.app.config.declaring import accepted_values, is_secret
from dataloader.app.config.settings import SECRET_PREFIX, Settings
from dataloader.app.config.values import FINAL_STATUSES
from dataloader.app.errors import ConfigError, SettingError

# Variables of version 0.2.0 that are still read, with a warning.
RENAMED = {
    "APP_THREADS": "APP_HTTP_THREADS",
    "DL_AUDIT_KEEP_DAYS": "DL_KEEP_HISTORY_DAYS",
    "DL_KEEP_JOURNAL_DAYS": "DL_KEEP_EVENTS_DAYS",
    "DL_RETENTION": "DL_RETENTION_ENABLED",
    "DL_SECRETS_ALLOW": "DL_TASK_SECRETS",
    "DL_STOP_GRACE_SEC": "DL_STOP_STEP_SEC",
    "DL_WEBHOOK_ALLOW": "DL_WEBHOOK_ALLOWED_HOSTS",
}
JOBS_RETENTION = "DL_KEEP_JOBS_DAYS"
MERGED = {f"DL_KEEP_{status.upper()}_DAYS": status for status in FINAL_STATUSES}  # into JOBS_RETENTION
REMOVED = frozenset({
    "DL_ALERT_PERIOD_SEC", "DL_CELLS", "DL_JOB_LOG_LINES_PER_SEC", "DL_JOB_LOG_MAX_BYTES", "DL_KEEP_KEYS_DAYS",
    "DL_LOG_KEEP_FILES", "DL_MAX_BATCH_BYTES", "DL_MAX_BODY_BYTES", "DL_MAX_JSON_DEPTH", "DL_MAX_TEXT_LENGTH",
    "DL_SESSION_HOURS", "DL_SESSION_SECRET", "DL_WEBHOOK_DISABLE_HOURS", "DL_WEBHOOK_KEEP_DAYS", "DL_WEBHOOK_THREADS",
    "DL_WEBHOOK_TIMEOUT_SEC",
})  # fmt: skip
_MAX_SHOWN_LENGTH = 80
FILE_SUFFIX = "_FILE"


def load_settings(
    environ: Mapping[str, str] | None = None,
    *,
    dotenv: Path | None = Path(".env"),
    loads_pipelines: bool = False,
    overrides: Mapping[str, str] | None = None,
) -> Settings:
    """Load the settings of the environment (by default the process's own), then of the `.env` file. A variable of
    `overrides` counts instead; an empty one is as if it were not set.

    For a process that loads the pipelines, a package of DL_PIPELINES that does not exist is an error too.
    Raises ConfigError with every error that could be found.
    """
    environment = {**(os.environ if environ is None else environ), **(overrides or {})}
    for name in overrides or ():
        environment.pop(name + FILE_SUFFIX, None)
    file, errors = _read_dotenv(dotenv)
    variables = {name: text for name, text in (file | environment).items() if text.strip()}
    sources = {name: "environment" if name in environment else ".env" for name in variables}
    errors += _read_secret_files(variables, sources)
    renames = _follow_renames(variables, sources)
    merges, merge_errors = _merge_retention(variables, sources)
    warnings = [*renames, *merges]

    settings, field_errors = parse_settings(variables)
    field_errors += merge_errors
    invalid = {error.variable for error in field_errors}
    errors += field_errors
    errors += [error for involved, error in checks.find_contradictions(settings, variables) if not involved & invalid]
    if loads_pipelines:
        errors += checks.check_packages(settings.pipelines)
    misspelt, unknown = checks.unknown_variables(variables, Settings.fields_by_variable())
    errors += misspelt
    if errors:
        raise ConfigError(errors)
    named_secrets = {name: text for name, text in variables.items() if name.startswith(SECRET_PREFIX)}
    return settings.loaded_from(sources, (*warnings, *unknown, *checks.overridden(settings)), named_secrets)


def _read_secret_files(variables: dict[str, str], sources: dict[str, str]) -> list[SettingError]:
    """Give each hidden setting the content of the file that its variable with _FILE names, as orchestrators mount
    secrets. Return an error for each that cannot be read."""
    errors = []
    for name in (name for name, field in Settings.fields_by_variable().items() if is_secret(field)):
        variable = name + FILE_SUFFIX
        if variable not in variables:
            continue
        path = variables.pop(variable)
        del sources[variable]
        try:
            if name in variables:
                raise ValueError(f"{name} is given too: one of the two would do")
            text = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
            if not text.strip():
                raise ValueError("the file is empty: one with the value alone would do")
        except UnicodeDecodeError:
            errors.append(SettingError(variable, _shorten(path), "a file in UTF-8 would do"))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            errors.append(SettingError(variable, _shorten(path), reason or "it cannot be read"))
        else:
            variables[name], sources[name] = text, variable
    return errors


def _follow_renames(variables: dict[str, str], sources: dict[str, str]) -> list[str]:
    """Give the values of old names to the new ones, and drop what was removed. Return a warning for each."""
    warnings = []
    for old, new in RENAMED.items():
        if old in variables:
            variables.setdefault(new, variables.pop(old))
            sources.setdefault(new, sources.pop(old))
            warnings.append(f"{old} is called {new} now; the old name will not be read by the next release")
    for name in sorted(REMOVED & variables.keys()):
        del variables[name]
        warnings.append(f"{name} was removed and has no effect; docs/upgrading.md has what counts now")
    return warnings


def _merge_retention(variables: dict[str, str], sources: dict[str, str]) -> tuple[list[str], list[SettingError]]:
    """Give the values of the former settings of single statuses to the one setting. Return a warning for each, and
    what is no number."""
    periods: dict[str, float] = {}
    warnings, errors = [], []
    for name in [name for name in MERGED if name in variables]:
        text, source = variables.pop(name), sources.pop(name)
        sources.setdefault(JOBS_RETENTION, source)
        warnings.append(f"{name} is part of {JOBS_RETENTION} now; the old name will not be read by the next release")
        try:
            periods[MERGED[name]] = float(text)
        except ValueError:
            errors.append(SettingError(name, _shorten(text), f"a number of days would do, better in {JOBS_RETENTION}"))
    if periods:
        variables.setdefault(JOBS_RETENTION, json.dumps(periods))
    return warnings, errors


def parse_settings(variables: Mapping[str, str]) -> tuple[Settings, list[SettingError]]:
    """Return the settings of all valid variables, so that one error does not hide contradictions among the rest."""
    ours = {name: variables[name] for name in Settings.fields_by_variable() if name in variables}
    try:
        return Settings.model_validate(ours), []
    except ValidationError as error:
        problems = _problems_by_variable(error)
    valid = {name: text for name, text in ours.items() if name not in problems}
    return Settings.model_validate(valid), [_setting_error(name, ours[name], problems[name]) for name in problems]


def _problems_by_variable(error: ValidationError) -> dict[str, list[str]]:
    """Return what is wrong within each value; nothing where the value as a whole is not what is accepted."""
    problems: dict[str, list[str]] = {}
    for details in error.errors(include_url=False, include_input=False):
        variable, *path = (f"entry {part + 1}" if isinstance(part, int) else str(part) for part in details["loc"])
        message = details["msg"].removeprefix("Value error, ")
        is_ours = details["type"] == "value_error"
        names = (name if name.isprintable() else repr(name) for name in path if name != "[key]")
        parts = [".".join(names), message if path or is_ours else ""]
        problems.setdefault(variable, []).append(": ".join(part for part in parts if part))
    return problems


def _setting_error(variable: str, text: str, problems: list[str]) -> SettingError:
    field = Settings.fields_by_variable()[variable]
    # Where a reference to a secret belongs, the secret itself may be what is wrong.
    is_hidden = is_secret(field) or "$secret" in accepted_values(field)
    value = f"a text of {len(text)} characters (hidden)" if is_hidden else _shorten(text)
    remedy = "; ".join([*filter(None, problems), f"{accepted_values(field)} would do"])
    return SettingError(variable, value, remedy)


def _shorten(text: str) -> str:
    is_long = len(text) > _MAX_SHOWN_LENGTH
    return f"{text[:_MAX_SHOWN_LENGTH]!r}… ({len(text)} characters)" if is_long else repr(text)


def _read_dotenv(path: Path | None) -> tuple[dict[str, str], list[SettingError]]:
    if path is None:
        return {}, []
    try:
        variables = DotEnvSettingsSource(Settings, env_file=path, case_sensitive=True).env_vars
    except UnicodeDecodeError:
        return {}, [SettingError(str(path), "a file that is not UTF-8", "save it as UTF-8")]
    except OSError as error:
        return {}, [SettingError(str(path), f"a file that cannot be read ({error.strerror})", "let this user read it")]
    return {name: text for name, text in variables.items() if text is not None}, []


def is_colour_disabled() -> bool:
    """Return whether NO_COLOR has any text (https://no-color.org)."""
    return bool(os.environ.get("NO_COLOR"))


def inherited_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment, overridden by `variables`: what a program started by a command inherits."""
    return {**os.environ, **variables}
