"""`python -m tests.target_proof run|mutants`: what `make targets-proof` and `make targets-mutants` call."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from dataloader.app.db.schema import migrate
from dataloader.app.postgres.binaries import Choice
from tests.chaos.servers import Server
from tests.target_proof.lanes import LaneSpec, prepare_process, run_in_processes
from tests.target_proof.mutants import MUTANTS
from tests.target_proof.proof import Tally
from tests.target_proof.site import TARGET_COUNT, Site
from tests.target_proof.special import run_process_loads, run_server_kills
from tests.target_proof.wire import WireProxy, connector

FULL_LOADS = 12_000  # each place once, and one in eight at random
_MAX_MUTANT_LOADS = 400  # until it is convicted
_PROGRESS_SEC = 10.0
_SPECIAL_SHARE = 60  # one load in so many


@contextmanager
def make_site(binaries: Choice) -> Iterator[tuple[Site, Server, Server]]:
    """A server for the queue, and one for the targets."""
    folder = Path(tempfile.mkdtemp(prefix="dl-targets-"))
    folder.chmod(0o755)  # as root the servers have another account, which must get there
    servers = [Server(folder / name, binaries=binaries) for name in ("queue", "targets")]
    queue, targets = servers
    try:
        for server in servers:
            server.create()
        migrate(queue.dsn)
        names = [f"target_{n}" for n in range(1, TARGET_COUNT + 1)]
        for name in names:
            targets.query(f"CREATE DATABASE {name}")
        site = Site(queue.dsn, [targets.dsn.replace("dbname=postgres", f"dbname={name}") for name in names])
        site.prepare()
        yield site, queue, targets
        site.close()
    finally:
        for server in servers:
            server.remove()
        shutil.rmtree(folder, ignore_errors=True)


def main(arguments: list[str]) -> int:
    asked = _parser().parse_args(arguments)
    with make_site(asked.postgres) as (site, queue, targets):
        if asked.command == "mutants":
            return _search_mutants(site, asked.only or list(MUTANTS), asked.seed)
        return _run(site, {"queue": queue, "target": targets}, asked)


def _run(site: Site, servers: Mapping[str, Server], asked: argparse.Namespace) -> int:
    began = shown = time.monotonic()
    total = Tally()
    _print(f"targets-proof: {asked.loads} loads, SEED={asked.seed}, in {asked.lanes} processes")

    def on_batch(tally: Tally) -> None:
        nonlocal shown
        total.add(tally)
        for number, violation in tally.violations:
            _print(f"VIOLATION in load {number}: {violation}")
        if time.monotonic() - shown > _PROGRESS_SEC:
            shown = time.monotonic()
            _print(f"{shown - began:6.0f} s  {total.loads} loads, {total.attempts} attempts, "
                   f"{sum(total.faults.values())} faults, {len(total.violations)} violations")  # fmt: skip

    special = asked.loads // _SPECIAL_SHARE if asked.special is None else asked.special
    run_in_processes(_specs(site, asked.seed, asked.loads - 2 * special, asked.lanes), on_batch)
    prepare_process()
    proxy = WireProxy({role: connector(server.dsn) for role, server in servers.items()})
    _print(f"{special} loads in processes of their own")
    run_process_loads(site, proxy, asked.seed, special, on_batch=on_batch)
    _print(f"{special} loads whose servers are killed")
    restart = {role: partial(_restart, server) for role, server in servers.items()}
    run_server_kills(site, proxy, asked.seed, special, restart=restart, on_batch=on_batch)
    proxy.close()
    total.seconds = time.monotonic() - began
    _print(total.text())
    return 1 if total.violations else 0


def _restart(server: Server) -> None:
    server.kill()
    server.start()


def _specs(site: Site, seed: int, loads: int, lanes: int, *, mutant: str = "") -> list[LaneSpec]:
    return [
        LaneSpec(site.queue_dsn, site.target_dsns, seed, loads, lane, lanes, mutant, mutant or "proof")
        for lane in range(lanes)
    ]


def _search_mutants(site: Site, names: list[str], seed: int) -> int:
    is_good = True
    _print("| mutant | what is missing | convicted by | loads | seconds |\n|---|---|---|---|---|")
    for name in names:
        began, total, mutant = time.monotonic(), Tally(), MUTANTS[name]
        run_in_processes(_specs(site, seed, _MAX_MUTANT_LOADS, 1, mutant=name), total.add)
        rules = {violation.rule for _, violation in total.violations}
        is_good &= bool(rules & mutant.expects)
        by = ", ".join(sorted(rules)) or "NOTHING"
        _print(f"| {name} | {mutant.description} | {by} | {total.loads} | {time.monotonic() - began:.0f} |")
        for _, violation in total.violations:
            _print(f"    {violation}")
    return 0 if is_good else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.target_proof", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "mutants"):
        command = commands.add_parser(name)
        command.add_argument("--seed", type=int, default=1)
        command.add_argument("--postgres", choices=("auto", "local", "wheel"), default="auto")
        command.add_argument("--loads", type=int, default=FULL_LOADS)
        command.add_argument("--special", type=int, help="loads in processes, and whose server is killed")
        command.add_argument("--lanes", type=int, default=2, help="processes")
        command.add_argument("--only", nargs="*", default=[], help="of the mutants, these")
    return parser


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
