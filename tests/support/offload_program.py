"""A program for engines: `python offload_program.py MODE FOLDER`. Needs the standard library alone.

Each start is noted in FOLDER/starts. `gate` runs until FOLDER/gate exists, and writes to FOLDER/beats meanwhile.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def main(mode: str, folder: Path) -> None:
    with (folder / "starts").open("a") as file:
        file.write(os.environ.get("DL_OFFLOAD", "?") + "\n")
    print("begun", flush=True)  # noqa: T201
    match mode:
        case "quick":
            print("::progress done=3 total=4", flush=True)  # noqa: T201
        case "progress":
            print("::progress done=3 total=4", flush=True)  # noqa: T201
            wait_for(folder / "gate", folder / "beats")
        case "gate":
            wait_for(folder / "gate", folder / "beats")
        case "fails":
            sys.exit("it broke")
        case "big":
            print("::result " + json.dumps("x" * 1_000_001), flush=True)  # noqa: T201
            return
        case "lines":
            for n in range(2_500):
                print(f"line {n}")  # noqa: T201
        case "noise":
            for _ in range(12):
                print("x" * 2_000_000)  # noqa: T201
            sys.stdout.buffer.write(b"\xff\xfe\n")
            sys.exit("it broke")
        case "variables":
            names = ("DL_JOB_ID", "DL_RUN_ID", "DL_OFFLOAD", "DL_FENCE_TOKEN", "OWN")
            print("::result " + json.dumps({name: os.environ.get(name) for name in names}))  # noqa: T201
            return
    print("::result " + json.dumps({"rows": 3}), flush=True)  # noqa: T201


def wait_for(gate: Path, beats: Path) -> None:
    end = time.monotonic() + 120
    while not gate.exists() and time.monotonic() < end:
        with beats.open("a") as file:
            file.write(".")
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
