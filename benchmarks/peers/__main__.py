"""dataloader beside its peers: enqueueing, draining a full queue, and picking up a job when idle.

Takes about 15 minutes, the first time some more to install them.

Each peer is installed in an environment of its own under --workdir, and driven as its own docs advise for throughput,
by the file in drivers/ that bears its name; one that cannot be had here is left out and says why. A round gives each of
them, in turn, a fresh store; an idle worker, to which single jobs are sent; a queue that is filled, one job a call and
in bulk, while no worker runs; and a worker that drains it, ten jobs at a time. The job does nothing: it writes one byte
to a pipe. A drain is timed from the first byte to the last, a pick-up from the answer to the enqueue to the byte.

What they promise differs, and has its price: the last column says what each keeps. Ratios are of ours with one process.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.peers import course
from benchmarks.peers.homes import Home, NotToBeHad, settle
from benchmarks.peers.known import ALL, OURS, Peer
from benchmarks.place import environment, some_server
from benchmarks.rounds import Cell, in_turn, median, options, quantile, table, times


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__name__, rounds=3)
    parser.add_argument("--jobs", type=int, default=3_000, help="in a full queue")
    parser.add_argument("--singly", type=int, default=300, help="how many of them are enqueued one a call")
    parser.add_argument("--picks", type=int, default=60, help="single jobs that an idle worker is sent")
    parser.add_argument("--concurrency", type=int, default=10)
    parser.add_argument("--limit", type=float, default=20.0, help="seconds for a drain; then what was done counts")
    parser.add_argument("--only", nargs="+", choices=sorted({peer.short for peer in ALL}), default=[])
    parser.add_argument("--workdir", type=Path, default=Path(tempfile.gettempdir()) / "dataloader-peers")
    asked = parser.parse_args(argv)
    chosen = [peer for peer in ALL if peer is OURS or not asked.only or peer.short in asked.only]
    size = course.Size(asked.jobs, asked.singly, asked.picks, asked.concurrency, asked.limit)
    homes, missing = settled(chosen, asked.workdir)
    with some_server({"max_connections": "200"}) as (server_dsn, _):
        print(environment(server_dsn))
        sides = {peer: partial(tried, peer, home, server_dsn, size, missing) for peer, home in homes.items()}
        by_name = {peer.name: peer for peer in sides}
        given = in_turn({peer.name: side for peer, side in sides.items()}, asked.rounds, tell=told)
    taken = {by_name[name]: [one for one in rounds if one is not None] for name, rounds in given.items()}
    show(taken, homes, size, asked.rounds)
    for peer, why in missing.items():
        print(f"\nleft out: {peer.name}: {why}")


def settled(peers: Sequence[Peer], workdir: Path) -> tuple[dict[Peer, Home], dict[Peer, str]]:
    homes: dict[Peer, Home] = {}
    missing: dict[Peer, str] = {}
    for peer in peers:
        try:
            homes[peer] = settle(peer, workdir)
        except NotToBeHad as error:
            missing[peer] = str(error)
            print(f"  {peer.name}: {error}", file=sys.stderr, flush=True)
    return homes, missing


def tried(peer: Peer, home: Home, server_dsn: str, size: course.Size, missing: dict[Peer, str]) -> course.Taken | None:
    """None: it has failed, in this round or before."""
    if peer in missing:
        return None
    try:
        return course.run(peer, home, server_dsn, size)
    except NotToBeHad as error:
        missing[peer] = str(error)
        return None


def told(name: str, taken: course.Taken | None) -> str:
    if taken is None:
        return "left out"
    rates = f"one {taken.one:,.0f}/s, bulk {taken.bulk:,.0f}/s, drain {taken.drain:,.0f}/s"
    return f"{rates}, p50 {median(taken.picks):.1f} ms"


def show(taken: dict[Peer, list[course.Taken]], homes: dict[Peer, Home], size: course.Size, rounds: int) -> None:
    ours = median([one.drain for one in taken[OURS]]) if taken.get(OURS) else None
    lines: list[Sequence[Cell]] = []
    for peer, all_taken in taken.items():
        if not all_taken:
            continue
        one, bulk, drain = (median([getattr(it, what) for it in all_taken]) for what in ("one", "bulk", "drain"))
        picks = [pick for it in all_taken for pick in it.picks]
        cut = "" if all(it.drained for it in all_taken) else " *"
        lines.append(
            (
                f"{peer.name} {homes[peer].versions(peer)}".strip(),
                round(one),
                round(bulk) if peer.bulk else None,
                f"{drain:,.0f}{cut}",
                times(drain / ours) if ours else None,
                quantile(picks, 50),
                quantile(picks, 99),
                peer.differs,
            )
        )
    print(f"{size.jobs:,} jobs, concurrency {size.concurrency}, {rounds} rounds in turn, medians")
    headings = ["enqueue one /s", "bulk /s", "drain /s", "of ours", "p50 ms", "p99 ms", "what it keeps"]
    print(table(["peer", *headings], lines, words=(0, 7)))
    if any(not it.drained for all_taken in taken.values() for it in all_taken):
        print(f"\n* not drained within {size.limit:g} s: the rate until then")


if __name__ == "__main__":
    main()
