"""Loads that take long each: in processes of their own that are killed, and with servers that are killed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dataloader.pipelines.contract import registry
from dataloader.workers.isolation.fork_server import ForkServer
from tests.target_proof import process_loads
from tests.target_proof.conductor import Conductor, ConductorOptions
from tests.target_proof.plan import SYSTEMATIC_PARTS, FaultKind, sample_places, systematic_loads
from tests.target_proof.proof import Tally, run_loads
from tests.target_proof.site import Site
from tests.target_proof.wire import WireProxy

PROCESS_KINDS = (FaultKind.CHILD_KILLED, FaultKind.THAWED_EARLY, FaultKind.WITHOUT_QUEUE)


def run_process_loads(
    site: Site, proxy: WireProxy, seed: int, loads: int, *, on_batch: Callable[[Tally], None]
) -> Tally:
    tasks = {}
    for shape, name in process_loads.NAMES.items():
        task = registry.get(name)
        assert task is not None
        tasks[shape] = task
    with_fork_server = ForkServer([process_loads.__name__])
    conductor = Conductor(
        site, proxy, "process", ConductorOptions(tasks, (process_loads.__name__,), fork_server=with_fork_server)
    )
    try:
        exchanges = conductor.count_exchanges(SYSTEMATIC_PARTS)
        plans = sample_places(systematic_loads(seed, exchanges, PROCESS_KINDS), exchanges, loads)
        return run_loads(site, conductor, plans, on_batch=on_batch)
    finally:
        conductor.close()
        with_fork_server.close()


def run_server_kills(
    site: Site,
    proxy: WireProxy,
    seed: int,
    loads: int,
    *,
    restart: Mapping[str, Callable[[], None]],
    on_batch: Callable[[Tally], None],
) -> Tally:
    """Of the servers that `restart` has."""
    conductor = Conductor(site, proxy, "crash", ConductorOptions(restart=restart))
    try:
        exchanges = conductor.count_exchanges(SYSTEMATIC_PARTS)
        plans = [
            plan
            for plan in systematic_loads(seed, exchanges, (FaultKind.SERVER_KILLED,))
            if exchanges[plan.shape][plan.faults[0].place.exchange].role in restart
        ]
        plans = sample_places(plans, exchanges, loads)
        return run_loads(site, conductor, plans, on_batch=on_batch)
    finally:
        conductor.close()
