"""PgQueuer: asyncpg, uvloop, and batches of 500 without a limit of ten, which would cost it nearly all of its speed."""

import asyncio

import asyncpg
import protocol
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

BATCH = 500
runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
opened = []


def queries():
    if not opened:
        opened.append(Queries(AsyncpgDriver(runner.run(asyncpg.connect(protocol.URL)))))
    return opened[0]


def setup():
    runner.run(queries().install())


async def one_after_another(jobs):
    for _ in range(jobs):
        await queries().enqueue("note", None)


def one(jobs):
    queries()
    runner.run(one_after_another(jobs))


async def in_batches(jobs):
    for begin in range(0, jobs, 1000):
        many = min(1000, jobs - begin)
        await queries().enqueue(["note"] * many, [None] * many, [0] * many)


def bulk(jobs):
    queries()
    runner.run(in_batches(jobs))


async def working():
    pgq = PgQueuer(AsyncpgDriver(await asyncpg.connect(protocol.URL)))

    @pgq.entrypoint("note")
    async def note(job):
        protocol.note()

    await pgq.run(batch_size=BATCH)


if __name__ == "__main__":
    protocol.drive(setup=setup, work=lambda: runner.run(working()), one=one, bulk=bulk)
