"""Oban for Python, embedded, one queue with a limit."""

import asyncio
import signal

import protocol
import uvloop
from oban import Oban, worker
from oban.schema import install

runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
opened = []


@worker(queue="bench")
class Note:
    async def process(self, job):
        protocol.note()


def sender():
    if not opened:
        opened.append(runner.run(opening()))
    return opened[0]


async def opening():
    return Oban(pool=await Oban.create_pool(protocol.URL, max_size=4))


async def installing():
    pool = await Oban.create_pool(protocol.URL, max_size=2)
    await install(pool)
    await pool.close()


async def one_after_another(oban, jobs):
    for _ in range(jobs):
        await oban.enqueue(Note.new({}))


async def in_batches(oban, jobs):
    for begin in range(0, jobs, 1000):
        await oban.enqueue_many(*(Note.new({}) for _ in range(min(1000, jobs - begin))))


async def working():
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    pool = await Oban.create_pool(protocol.URL, max_size=protocol.CONCURRENCY + 5)
    async with Oban(pool=pool, queues={"bench": protocol.CONCURRENCY}):
        await ended.wait()
    await pool.close()


if __name__ == "__main__":
    protocol.drive(
        setup=lambda: runner.run(installing()),
        work=lambda: runner.run(working()),
        one=lambda jobs: runner.run(one_after_another(sender(), jobs)),
        bulk=lambda jobs: runner.run(in_batches(sender(), jobs)),
    )
