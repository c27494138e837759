"""Code that was written before this project: it knows nothing of jobs, and opens its own connection.

python legacy_loads.py DSN LOAD SECONDS
"""

from __future__ import annotations

import sys

import psycopg2

# One statement in autocommit that commits a row ten times a second: what runs on when only its client is gone.
WRITE = """
DO $$
DECLARE ends_at timestamptz := clock_timestamp() + make_interval(secs => {seconds});
BEGIN
    WHILE clock_timestamp() < ends_at LOOP
        INSERT INTO legacy_rows (load, session) VALUES ('{load}', pg_backend_pid());
        COMMIT;
        PERFORM pg_sleep(0.1);
    END LOOP;
END $$"""


def write_rows(dsn: str, load: str, seconds: float) -> None:
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(WRITE.format(load=load, seconds=float(seconds)))


if __name__ == "__main__":
    write_rows(sys.argv[1], sys.argv[2], float(sys.argv[3]))
