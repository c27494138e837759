"""A script's `main()` and functions that open their own connections: none of them knows this project."""

from __future__ import annotations

import argparse
import sys

import psycopg2


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--day", required=True)
    parser.add_argument("--code", type=int, default=0)
    given = parser.parse_args()
    return int(given.code)


def loaded_modules() -> list[str]:
    return sorted(sys.modules)


def show_session(dsn: str, setting: str) -> list[str]:
    connection = psycopg2.connect(dsn)
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('application_name'), current_setting(%s)", (setting,))
        return [str(value) for value in cursor.fetchone() or ()]


def sleep_in_sql(dsn: str, seconds: float) -> None:
    connection = psycopg2.connect(dsn)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(%s)", (seconds,))
