"""The pages about settings, made from the model so that they cannot lag behind it.

`python -m dataloader.app.config.docs` writes both where they belong in a checkout.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from textwrap import wrap

from dataloader.app.config.declaring import is_secret
from dataloader.app.config.settings import SettingInfo, Settings
from dataloader.app.errors import ConfigError

_EXIT_CODE = ConfigError.exit_code
_SECRETS = ", ".join(f"`{name}`" for name, field in Settings.fields_by_variable().items() if is_secret(field))
_INTRODUCTION = f"""# Configuration

Every setting is an environment variable. A file `.env` in the working folder is read as well; what the environment
says wins over it, and a variable without a text counts as not given. `dataloader config` shows what is in force and
where it came from. This page is made by `dataloader config --docs`.

With an error nothing starts: all errors are reported together, each with its variable, its value and what is accepted,
and the exit code is {_EXIT_CODE}. A `DL_…` variable whose name is nearly that of a setting is an error; other
variables with such a name cause a warning. Passwords are never shown, neither alone nor within `DL_DB_DSN`.

**Passwords in a connection string.** Within `postgresql://…` write `%` as `%25`, `@` as `%40`, `:` as `%3A` and `/` as
`%2F`. Within `host=… password=…` put a value with blanks between `'` and `'`. What libpq cannot read, in `DL_DB_DSN`,
`DL_WORKER_DSN` or `DL_TARGETS`, is a fault like any other.

**Secrets by file.** A container gets its secrets as files. {_SECRETS}
may each be given by a variable with `_FILE` at its end, which names a file with the value:
`PG_PASSWORD_FILE=/run/secrets/database_password`. Line ends after the value do not count; both variables of a setting
are a fault. The secrets that args refer to are files in `DL_SECRETS_DIR`.

**Which database.** `DL_DB_DSN` if given; else the server that `PG_HOST` names; else an embedded PostgreSQL with its
data in `DL_DATA_DIR`. `PG_PORT`, `PG_USER`, `PG_PASSWORD` or `PG_DATABASE` without a server is a fault. libpq's own
variables (`PGSSLMODE`, `PGPASSFILE`, …) do what they always do, yet do not choose the server.

**API and workers apart.** With `WORKERS_JSON=[]` a process only answers HTTP. `dataloader worker` only runs jobs; with
`DL_PROBE_PORT` it also answers probes and `/metrics`.

**Log files.** Each of the three exists only if its folder is named. Several processes may share them, and a tool such
as logrotate may move them at any time. If the disk cannot be written, log lines are lost and jobs continue.
"""


def configuration_page() -> str:
    """docs/configuration.md"""
    parts = [_INTRODUCTION]
    for group, infos in _settings_by_group():
        rows = [
            f"| `{info.variable}` | {_format_code(info.default)} | {info.meaning} | {_format_cell(info.accepts)} |"
            for info in infos
        ]
        parts.append(
            "\n".join([f"## {group}", "", "| variable | default | meaning | accepts |", "|---|---|---|---|", *rows, ""])
        )
    return "\n".join(parts)


def dotenv_example() -> str:
    """.env.example: every variable with its default, none of them in force."""
    lines = ["# Copy this file to .env and uncomment what shall differ from its default.", ""]
    for group, infos in _settings_by_group():
        lines += [f"# --- {group} ---", ""]
        for info in infos:
            lines += [*wrap(info.meaning, 100, initial_indent="# ", subsequent_indent="# ")]
            lines += [f"#{info.variable}={_quote_dotenv_value(info.default)}", ""]
    return "\n".join(lines)


def write_docs(folder: Path) -> None:
    """Put both pages where they belong in a checkout."""
    (folder / "docs" / "configuration.md").write_text(configuration_page(), encoding="utf-8")
    (folder / ".env.example").write_text(dotenv_example(), encoding="utf-8")


def _settings_by_group() -> list[tuple[str, list[SettingInfo]]]:
    infos = Settings().describe()  # of no environment: the defaults
    return [(group, list(members)) for group, members in groupby(infos, key=lambda info: info.group)]


def _format_code(text: str) -> str:
    return f"`{_format_cell(text)}`" if text else ""


def _format_cell(text: str) -> str:
    return text.replace("|", "\\|")


def _quote_dotenv_value(text: str) -> str:
    return f"'{text}'" if any(mark in text for mark in ' "#') else text


if __name__ == "__main__":
    write_docs(Path(__file__).resolve().parents[2])  # not of dataloader/, which leads here
