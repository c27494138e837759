"""A sample of `make targets-proof`: loads that die at some places, each part is there once."""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from dataloader.pipelines import effects, target_transactions
from tests.support import PrivateServer
from tests.support.processes import Process
from tests.target_proof.conductor import Conductor
from tests.target_proof.lanes import MAX_WAIT_SEC, decode_tally, encode_tally
from tests.target_proof.plan import (
    SYSTEMATIC_PARTS,
    WIRE_KINDS,
    plan_loads,
    random_loads,
    sample_places,
    systematic_loads,
)
from tests.target_proof.proof import Tally, run_loads
from tests.target_proof.rules import Violation
from tests.target_proof.site import TARGET_COUNT, Site
from tests.target_proof.special import run_process_loads, run_server_kills
from tests.target_proof.wire import WireProxy, connector

SEED = 11
PLACES, AT_RANDOM = 40, 6


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (effects, target_transactions):
        monkeypatch.setattr(module, "MAX_WAIT_SEC", MAX_WAIT_SEC)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def site(databases: Any) -> Iterator[Site]:
    with ExitStack() as stack:
        queue = stack.enter_context(databases.fresh())
        targets = [stack.enter_context(databases.fresh(schema=False)) for _ in range(TARGET_COUNT)]
        made = Site(queue, targets)
        made.prepare()
        yield made
        made.close()


@pytest.fixture
def proxy(site: Site) -> Iterator[WireProxy]:
    made = WireProxy({"queue": connector(site.queue_dsn), "target": connector(site.target_dsns[0])})
    yield made
    made.close()


def test_loads_that_die_at_any_message_are_written_once(site: Site, proxy: WireProxy):
    conductor = Conductor(site, proxy, "sample")
    exchanges = conductor.count_exchanges(SYSTEMATIC_PARTS)
    plans = plan_loads(SEED, exchanges, 12_000)
    assert plans == plan_loads(SEED, conductor.count_exchanges(SYSTEMATIC_PARTS), 12_000), "the seed plans the same"
    assert {plan.number for plan in plans} >= set(range(len(systematic_loads(SEED, exchanges)))), "each place is met"
    at_random = random_loads(SEED, exchanges)
    plans = sample_places(systematic_loads(SEED, exchanges), exchanges, PLACES)

    tally = run_loads(site, conductor, [*plans, *(next(at_random) for _ in range(AT_RANDOM))])
    conductor.close()

    assert [str(violation) for _, violation in tally.violations] == []
    assert tally.loads == PLACES + AT_RANDOM
    assert len({kind for kind, _, _ in tally.faults}) == len(WIRE_KINDS)
    assert tally.orders


def test_loads_whose_process_is_killed_are_written_once(site: Site, proxy: WireProxy):
    tally = run_process_loads(site, proxy, SEED, 3, on_batch=lambda tally: None)

    assert [str(violation) for _, violation in tally.violations] == []
    assert sum(tally.faults.values()) == 3


def test_loads_whose_server_is_killed_are_written_once(site: Site, server: PrivateServer):
    """The server of the targets; the queue is elsewhere."""
    names = [f"target_{n}" for n in range(TARGET_COUNT)]
    own = Site(site.queue_dsn, [server.dsn.replace("dbname=postgres", f"dbname={name}") for name in names])
    for name in names:
        own.query(server.dsn, f"CREATE DATABASE {name}")
    own.prepare()
    proxy = WireProxy({"queue": connector(own.queue_dsn), "target": connector(server.dsn)})

    def restart() -> None:
        server.kill()
        server.start()

    tally = run_server_kills(own, proxy, SEED, 3, restart={"target": restart}, on_batch=lambda tally: None)
    proxy.close()
    own.close()

    assert [str(violation) for _, violation in tally.violations] == []
    assert sum(tally.faults.values()) == 3


def test_tally_is_the_same_after_its_way_between_processes():
    violation = Violation("part lost", uuid4(), "each", "it is away")
    faults = Counter({("worker killed", "target: COMMIT", "after the request"): 2})
    tally = Tally(3, 5, faults, Counter({"late": 1}), Counter({"each": 3}), [(7, violation)], 1.5)

    assert decode_tally(json.loads(json.dumps(encode_tally(tally)))) == tally


def test_every_mutant_finds_what_it_changes(tmp_path: Path):
    code = """
import os, sys
from tests.target_proof.mutants import MUTANTS
for name, mutant in MUTANTS.items():
    child = os.fork()
    if not child:
        mutant.apply()
        os._exit(0)
    print(name, os.waitpid(child, 0)[1])
print("all")
"""
    with Process([sys.executable, "-c", code], output=tmp_path / "out", env={"PYTHONPATH": "."}) as process:
        process.wait_for_line("all")
        assert {line.rpartition(" ")[2] for line in process.text.splitlines() if " " in line} == {"0"}
