"""Dramatiq with its PostgreSQL broker: one process with threads, through its own command; it has no bulk."""

import dramatiq
import protocol
import psycopg2
from dramatiq_pg import PostgresBroker
from dramatiq_pg.schema import generate_init_sql

broker = PostgresBroker(url=protocol.URL, results=False)
dramatiq.set_broker(broker)


@dramatiq.actor
def note():
    protocol.note()


def setup():
    connection = psycopg2.connect(protocol.URL)
    with connection, connection.cursor() as cursor:
        cursor.execute(generate_init_sql())
    connection.close()


def one(jobs):
    for _ in range(jobs):
        note.send()


def work():
    protocol.become(
        "dramatiq", "with_dramatiq_pg", "--processes", "1", "--threads", str(protocol.CONCURRENCY), "--skip-logging"
    )


if __name__ == "__main__":
    protocol.drive(setup=setup, work=work, one=one, bulk=one)
