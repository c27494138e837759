"""How the benchmark speaks with a driver. Standard library only: it runs in each peer's own environment.

A driver is a file that is run with one word: `setup` makes the peer's tables, `enqueue` answers lines on its standard
input, `work` is the worker, until it is ended. BENCH_URL says where the store is, BENCH_CONCURRENCY how many jobs may
run at a time. The job writes one byte to the pipe at BENCH_PIPE: when that comes out at the other end, it has run.
"""

import json
import os
import sys
import time

URL = os.environ.get("BENCH_URL", "")
CONCURRENCY = int(os.environ.get("BENCH_CONCURRENCY", "10"))
_pipe = []


def note() -> None:
    """What the job does."""
    if not _pipe:
        _pipe.append(os.open(os.environ["BENCH_PIPE"], os.O_WRONLY))
    os.write(_pipe[0], b".")


def drive(*, setup, work, one, bulk):
    """`setup()` and `work()`; `one(n)` enqueues n jobs a call each, `bulk(n)` as many at once as the peer can."""
    word = sys.argv[1]
    if word == "setup":
        setup()
    elif word == "work":
        work()
    else:
        for line in sys.stdin:
            asked = json.loads(line)
            ways = {"one": one, "bulk": bulk}
            began = time.monotonic()
            ways[asked["do"]](asked["jobs"])
            ended = time.monotonic()
            print(json.dumps({"seconds": ended - began, "at": ended}), flush=True)


def become(*command):
    """Be the peer's own command from here on, with this folder to import from."""
    os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))
    os.chdir(os.environ["PYTHONPATH"])
    program = os.path.join(os.path.dirname(sys.executable), command[0])
    os.execv(program, [program, *command[1:]])  # noqa: S606 - there is no shell to want
