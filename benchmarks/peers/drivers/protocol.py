"""The protocol between benchmark and driver. Standard library only: it runs in each peer's own environment.

A driver runs with one argument: `setup` makes the peer's tables, `enqueue` answers requests on its standard input,
`work` is the worker, until it is ended. BENCH_URL is the address of the store, BENCH_CONCURRENCY the number of
concurrent jobs. The job writes one byte to the pipe at BENCH_PIPE, which shows that it ran.
"""

import json
import os
import sys
import time

URL = os.environ.get("BENCH_URL", "")
CONCURRENCY = int(os.environ.get("BENCH_CONCURRENCY", "10"))
_pipe = []


def note() -> None:
    """The job: write one byte."""
    if not _pipe:
        _pipe.append(os.open(os.environ["BENCH_PIPE"], os.O_WRONLY))
    os.write(_pipe[0], b".")


def drive(*, setup, work, one, bulk):
    """Run the command: `one(n)` enqueues n jobs one by one, `bulk(n)` as many at once as the peer can."""
    command = sys.argv[1]
    if command == "setup":
        setup()
    elif command == "work":
        work()
    else:
        for line in sys.stdin:
            request = json.loads(line)
            ways = {"one": one, "bulk": bulk}
            began = time.monotonic()
            ways[request["do"]](request["jobs"])
            ended = time.monotonic()
            print(json.dumps({"seconds": ended - began, "at": ended}), flush=True)


def become(*command):
    """Replace this process by the peer's command, with this folder on its import path."""
    os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))
    os.chdir(os.environ["PYTHONPATH"])
    program = os.path.join(os.path.dirname(sys.executable), command[0])
    os.execv(program, [program, *command[1:]])  # noqa: S606 - no shell needed
