"""Compares dataloader with other job queues: enqueueing, draining a full queue, and picking up a job when idle.

Takes about 15 minutes, and longer the first time, when the peers are installed.

Each peer is installed in its own environment under --workdir. A file in drivers/ runs it with the settings that its
documentation advises for throughput. A peer that cannot be installed is left out with the reason. In each round every
peer in turn gets an empty store; single jobs for an idle worker; jobs one by one and in bulk while no worker runs; and
a worker that drains the queue, ten jobs at a time. The job writes one byte to a pipe. A drain lasts from the first byte
to the last, a pick-up from the response to the enqueue to the byte.

The guarantees differ; the last column shows what each peer keeps. Ratios are to dataloader with one process.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.peers import course
from benchmarks.peers.homes import PeerEnvironment, PeerUnavailable, install_peer
from benchmarks.peers.known import DATALOADER, PEERS, Peer
from benchmarks.place import benchmark_server, describe_environment
from benchmarks.rounds import Cell, format_ratio, format_table, make_parser, median, quantile, run_rounds


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__, rounds=3)
    parser.add_argument("--jobs", type=int, default=3_000, help="jobs in the full queue")
    parser.add_argument("--singly", type=int, default=300, help="how many of them are enqueued one by one")
    parser.add_argument("--picks", type=int, default=60, help="single jobs for an idle worker")
    parser.add_argument("--concurrency", type=int, default=10)
    parser.add_argument(
        "--limit", type=float, default=20.0, help="seconds for a drain; afterwards the rate so far counts"
    )
    parser.add_argument("--only", nargs="+", choices=sorted({peer.command_name for peer in PEERS}), default=[])
    parser.add_argument("--workdir", type=Path, default=Path(tempfile.gettempdir()) / "dataloader-peers")
    options = parser.parse_args(argv)
    chosen = [peer for peer in PEERS if peer is DATALOADER or not options.only or peer.command_name in options.only]
    size = course.RoundSize(options.jobs, options.singly, options.picks, options.concurrency, options.limit)
    homes, missing = prepare_peers(chosen, options.workdir)
    with benchmark_server({"max_connections": "200"}) as (server_dsn, _):
        print(describe_environment(server_dsn))
        sides = {peer: partial(try_round, peer, home, server_dsn, size, missing) for peer, home in homes.items()}
        by_name = {peer.name: peer for peer in sides}
        results = run_rounds({peer.name: side for peer, side in sides.items()}, options.rounds, log=format_result)
    taken = {by_name[name]: [result for result in rounds if result is not None] for name, rounds in results.items()}
    print_results(taken, homes, size, options.rounds)
    for peer, reason in missing.items():
        print(f"\nleft out: {peer.name}: {reason}")


def prepare_peers(peers: Sequence[Peer], workdir: Path) -> tuple[dict[Peer, PeerEnvironment], dict[Peer, str]]:
    homes: dict[Peer, PeerEnvironment] = {}
    missing: dict[Peer, str] = {}
    for peer in peers:
        try:
            homes[peer] = install_peer(peer, workdir)
        except PeerUnavailable as error:
            missing[peer] = str(error)
            print(f"  {peer.name}: {error}", file=sys.stderr, flush=True)
    return homes, missing


def try_round(
    peer: Peer, home: PeerEnvironment, server_dsn: str, size: course.RoundSize, missing: dict[Peer, str]
) -> course.RoundResult | None:
    """Return None if the peer failed in this round or before."""
    if peer in missing:
        return None
    try:
        return course.run_round(peer, home, server_dsn, size)
    except PeerUnavailable as error:
        missing[peer] = str(error)
        return None


def format_result(name: str, costs: course.RoundResult | None) -> str:
    if costs is None:
        return "left out"
    rates = f"one {costs.one:,.0f}/s, bulk {costs.bulk:,.0f}/s, drain {costs.drain:,.0f}/s"
    return f"{rates}, p50 {median(costs.picks):.1f} ms"


def print_results(
    costs: dict[Peer, list[course.RoundResult]], homes: dict[Peer, PeerEnvironment], size: course.RoundSize, rounds: int
) -> None:
    ours = median([result.drain for result in costs[DATALOADER]]) if costs.get(DATALOADER) else None
    lines: list[Sequence[Cell]] = []
    for peer, all_taken in costs.items():
        if not all_taken:
            continue
        one, bulk, drain = (
            median([getattr(result, column) for result in all_taken]) for column in ("one", "bulk", "drain")
        )
        picks = [pick for result in all_taken for pick in result.picks]
        cut = "" if all(result.drained for result in all_taken) else " *"
        lines.append(
            (
                f"{peer.name} {homes[peer].versions(peer)}".strip(),
                round(one),
                round(bulk) if peer.bulk else None,
                f"{drain:,.0f}{cut}",
                format_ratio(drain / ours) if ours else None,
                quantile(picks, 50),
                quantile(picks, 99),
                peer.differences,
            )
        )
    print(f"{size.jobs:,} jobs, concurrency {size.concurrency}, {rounds} rounds, medians")
    headings = ["enqueue one /s", "bulk /s", "drain /s", "of ours", "p50 ms", "p99 ms", "what it keeps"]
    print(format_table(["peer", *headings], lines, text_columns=(0, 7)))
    if any(not result.drained for all_taken in costs.values() for result in all_taken):
        print(f"\n* not drained within {size.drain_limit_sec:g} s: the rate until then")


if __name__ == "__main__":
    main()
