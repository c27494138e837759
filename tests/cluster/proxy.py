"""A TCP proxy with latency and a bounded rate: `python -m tests.cluster.proxy PORT TARGET DELAY_SEC BYTES_PER_SEC`.

The kernels of many machines have no `netem`. What arrives is passed on after the delay, in order, in each direction,
so a round trip takes twice as long; a rate of 0 is unbounded. Runs until it is killed.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import suppress

_RECV_BYTES = 65_536


async def _forward(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_sec: float, bytes_per_sec: float
) -> None:
    """Read as it comes, and write each piece when its time has come."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def write_all() -> None:
        while True:
            due_at, data = await pieces.get()
            await asyncio.sleep(max(0.0, due_at - loop.time()))
            if not data:
                return
            writer.write(data)
            await writer.drain()
            if bytes_per_sec:
                await asyncio.sleep(len(data) / bytes_per_sec)

    task = asyncio.create_task(write_all())
    with suppress(ConnectionError):
        while data := await reader.read(_RECV_BYTES):
            pieces.put_nowait((loop.time() + delay_sec, data))
    pieces.put_nowait((loop.time() + delay_sec, b""))
    with suppress(ConnectionError):
        await task
    with suppress(ConnectionError):
        writer.close()
        await writer.wait_closed()


async def main(port: int, target: str, delay_sec: float, bytes_per_sec: float) -> None:
    host, _, target_port = target.rpartition(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to_reader, to_writer = await asyncio.open_connection(host, int(target_port))
        except OSError:
            writer.close()
            return
        for end in (writer, to_writer):
            end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.gather(
            _forward(reader, to_writer, delay_sec, bytes_per_sec), _forward(to_reader, writer, delay_sec, bytes_per_sec)
        )

    server = await asyncio.start_server(serve, "0.0.0.0", port)
    print("ready", flush=True)  # noqa: T201
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), float(sys.argv[4])))
