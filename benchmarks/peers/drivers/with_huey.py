"""Huey on its PostgreSQL storage: its consumer with threads; it has no bulk."""

import protocol
from huey import PostgresHuey

huey = PostgresHuey("bench", dsn=protocol.URL, results=False)


@huey.task()
def note():
    protocol.note()


def one(jobs):
    for _ in range(jobs):
        note()


def work():
    protocol.become(
        "huey_consumer",
        "with_huey.huey",
        "--workers",
        str(protocol.CONCURRENCY),
        "--worker-type",
        "thread",
        "--quiet",
    )


if __name__ == "__main__":
    import with_huey  # a task is known by its module's name, which is another one in the consumer

    protocol.drive(setup=lambda: None, work=work, one=with_huey.one, bulk=with_huey.one)
