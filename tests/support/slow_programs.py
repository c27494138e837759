"""Twenty tasks that are slow, each for a reason of its own. The account of each must name the reason and the place."""

from __future__ import annotations

import importlib
import io
import itertools
import json
import lzma
import mmap
import os
import queue
import re
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg2.errors

from dataloader.pipelines.contract import Context, Pipelines, register

PAGE = mmap.PAGESIZE
TARGET = "warehouse"
SLOW_ROW_SEC = 0.05  # that the server takes for a row of COPY


def is_time_left(args: dict[str, Any]) -> Callable[[], bool]:
    ends_at = time.monotonic() + float(args["sec"])
    return lambda: time.monotonic() < ends_at


def wait_for_row(args: dict[str, Any], ctx: Context) -> None:
    with ctx.connect(TARGET) as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE held SET amount = 7 WHERE id = 1")


def scan_without_index(args: dict[str, Any], ctx: Context) -> None:
    left = is_time_left(args)
    with ctx.connect(TARGET) as connection, connection.cursor() as cursor:
        while left():
            cursor.execute("SELECT count(*) FROM facts a JOIN facts b ON a.code || '' < b.code WHERE a.id < 100")


def query_each_row(args: dict[str, Any], ctx: Context) -> None:
    left, number = is_time_left(args), 0
    with ctx.connect(TARGET) as connection, connection.cursor() as cursor:
        while left():
            number += 1
            cursor.execute("SELECT amount FROM sales WHERE id = %s", [number % 100])
            cursor.fetchone()


def hold_interpreter(args: dict[str, Any]) -> None:
    left = is_time_left(args)
    while left():
        max(itertools.repeat(0, 30_000_000))


def read_slow_peer(args: dict[str, Any]) -> None:
    with urllib.request.urlopen(f"{args['url']}/slow?sec={args['sec']}") as response:  # noqa: S310 - of loopback
        while response.read(1):
            pass


def ask_throttled_peer(args: dict[str, Any]) -> None:
    left = is_time_left(args)
    while left():
        try:
            urllib.request.urlopen(f"{args['url']}/throttled")  # noqa: S310 - of loopback
        except urllib.error.HTTPError:
            time.sleep(0.5)


def read_memory_from_disk(args: dict[str, Any]) -> None:
    left = is_time_left(args)
    with open(args["big_file"], "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        memory.madvise(mmap.MADV_RANDOM)
        pages = len(memory) // PAGE
        while left():
            memory.madvise(mmap.MADV_DONTNEED)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            for page in range(0, pages, 7):
                memory[page * PAGE]


def write_to_full_disk(args: dict[str, Any]) -> None:
    left = is_time_left(args)
    while left():
        try:
            with open("/dev/full", "wb", buffering=0) as file:
                file.write(b"line\n")
        except OSError:
            time.sleep(0.3)


def match_exploding_pattern(args: dict[str, Any]) -> None:
    left = is_time_left(args)
    while left():
        re.match(r"(a+)+$", "a" * 21 + "b")


def sleep_in_loop(args: dict[str, Any]) -> None:
    left = is_time_left(args)
    while left():
        time.sleep(0.05)


def serve_own_queue(work: queue.Queue[float]) -> None:
    while (sec := work.get()) > 0:
        time.sleep(sec)
        work.task_done()


def wait_for_own_threads(args: dict[str, Any]) -> None:
    work: queue.Queue[float] = queue.Queue()
    helper = threading.Thread(target=serve_own_queue, args=(work,), daemon=True)
    helper.start()
    for _ in range(int(float(args["sec"]) / 0.1)):
        work.put(0.1)
    work.join()
    work.put(0)


def retry_deadlock(args: dict[str, Any], ctx: Context) -> None:
    left = is_time_left(args)
    with ctx.connect(TARGET) as connection, connection.cursor() as cursor:
        while left():
            try:
                cursor.execute("UPDATE crossed SET amount = 1 WHERE id = 1")
                time.sleep(0.05)
                cursor.execute("UPDATE crossed SET amount = 1 WHERE id = 2")
                connection.commit()
            except psycopg2.errors.DeadlockDetected:
                connection.rollback()


def copy_to_slow_server(args: dict[str, Any], ctx: Context) -> None:
    with ctx.connect(TARGET) as connection, connection.cursor() as cursor:
        rows = "".join(f"{number}\t1\n" for number in range(int(args["sec"] / SLOW_ROW_SEC)))
        cursor.copy_expert("COPY slow (id, amount) FROM STDIN", io.StringIO(rows))


def resolve_name(args: dict[str, Any]) -> None:
    """As a resolver does whose server does not answer."""
    left = is_time_left(args)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(1.0)
        while left():
            asking.sendto(b"\x00\x01", ("127.0.0.1", int(args["silent_port"])))
            with suppress(TimeoutError):
                asking.recvfrom(512)


def parse_huge_json(args: dict[str, Any]) -> None:
    left, text = is_time_left(args), json.dumps([{"id": n, "name": f"name {n}"} for n in range(200_000)])
    while left():
        json.loads(text)


def loop_over_rows(args: dict[str, Any]) -> None:
    pandas = importlib.import_module("pandas")

    left, frame = is_time_left(args), pandas.DataFrame({"id": range(3000), "amount": range(3000)})
    while left():
        for _, row in frame.iterrows():
            assert row["amount"] >= 0


def fetch_one_row(args: dict[str, Any], ctx: Context) -> None:
    left = is_time_left(args)
    with ctx.connect(TARGET) as connection, connection.cursor(name="rows") as cursor:
        cursor.execute("SELECT a.id FROM facts a CROSS JOIN facts b")
        while left():
            cursor.fetchmany(1)


def sync_each_line(args: dict[str, Any]) -> None:
    left = is_time_left(args)
    with open(args["line_file"], "ab", buffering=0) as file:
        while left():
            file.write(b"a line\n")
            os.fsync(file.fileno())


def compress_much(args: dict[str, Any]) -> None:
    left, data = is_time_left(args), bytes(range(256)) * 4000
    while left():
        lzma.compress(data)


def wait_for_child_without_input(args: dict[str, Any]) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as program, suppress(subprocess.TimeoutExpired):
        program.wait(float(args["sec"]))


PROGRAMS: dict[str, Callable[..., None]] = {
    "lock wait behind an open transaction": wait_for_row,
    "missing index": scan_without_index,
    "N+1 queries": query_each_row,
    "C call that holds the interpreter": hold_interpreter,
    "slow HTTP peer": read_slow_peer,
    "throttled API": ask_throttled_peer,
    "swap-like memory": read_memory_from_disk,
    "full disk that retries": write_to_full_disk,
    "regex that explodes": match_exploding_pattern,
    "sleep loop": sleep_in_loop,
    "queue of its own threads": wait_for_own_threads,
    "deadlock retried": retry_deadlock,
    "COPY to a slow server": copy_to_slow_server,
    "DNS that times out": resolve_name,
    "huge JSON": parse_huge_json,
    "pandas row loop": loop_over_rows,
    "cursor that fetches one row": fetch_one_row,
    "fsync per line": sync_each_line,
    "compression": compress_much,
    "child that waits for input": wait_for_child_without_input,
}


def stay(args: dict[str, Any]) -> None:
    while not os.path.exists(args["file"]):
        time.sleep(0.1)


def in_threads() -> Pipelines:
    tasks = Pipelines()
    tasks.register("stay")(stay)
    for task in PROGRAMS.values():
        tasks.register(f"thread.{task.__name__}")(task)
    return tasks


for _task in PROGRAMS.values():
    register(f"process.{_task.__name__}", isolation="process")(_task)
