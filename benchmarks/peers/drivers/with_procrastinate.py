"""Procrastinate: an asynchronous worker, asynchronous tasks, enqueueing over a synchronous pool."""

import procrastinate
import protocol

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=protocol.URL))
sender = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=protocol.URL))


@app.task(name="note")
async def note():
    protocol.note()


def opened():
    found = []

    def get():
        if not found:
            sender.open()
            found.append(sender.configure_task("note"))
        return found[0]

    return get


deferrer = opened()


def setup():
    with sender.open():
        sender.schema_manager.apply_schema()


def one(jobs):
    for _ in range(jobs):
        deferrer().defer()


def bulk(jobs):
    for begin in range(0, jobs, 1000):
        deferrer().batch_defer(*({} for _ in range(min(1000, jobs - begin))))


def work():
    app.run_worker(concurrency=protocol.CONCURRENCY)


if __name__ == "__main__":
    protocol.drive(setup=setup, work=work, one=one, bulk=bulk)
