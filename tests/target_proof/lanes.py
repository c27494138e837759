"""The loads of a proof in processes of their own, which share the servers. Each prints what came of it, as JSON."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import IO, Any
from uuid import UUID

from dataloader.pipelines import effects, target_transactions
from tests.support.processes import ROOT
from tests.target_proof.conductor import Conductor
from tests.target_proof.mutants import MUTANTS
from tests.target_proof.plan import SYSTEMATIC_PARTS, WIRE_KINDS, FaultKind, plan_loads
from tests.target_proof.proof import Tally, run_loads
from tests.target_proof.rules import Violation
from tests.target_proof.site import Site
from tests.target_proof.wire import WireProxy, connector

MAX_WAIT_SEC = 0.2  # for a transaction of the previous attempt, where the product waits 10 s


@dataclass(frozen=True)
class LaneSpec:
    """Every `lanes`-th load, from the number `lane` on."""

    queue_dsn: str
    target_dsns: Sequence[str]
    seed: int
    loads: int
    lane: int = 0
    lanes: int = 1
    mutant: str = ""
    name: str = "proof"


def prepare_process() -> None:
    """Workers that are killed log much; and what waits for a zombie waits less."""
    logging.disable(logging.CRITICAL)
    modules: tuple[Any, ...] = (effects, target_transactions)
    for module in modules:
        module.MAX_WAIT_SEC = MAX_WAIT_SEC


def run_lane(spec: LaneSpec, on_batch: Callable[[Tally], None]) -> Tally:
    """In this process."""
    site = Site(spec.queue_dsn, spec.target_dsns)
    proxy = WireProxy({"queue": connector(spec.queue_dsn), "target": connector(spec.target_dsns[0])})
    conductor = Conductor(site, proxy, f"{spec.name}-{spec.lane}")
    try:
        exchanges = conductor.count_exchanges(SYSTEMATIC_PARTS)
        kinds: Sequence[FaultKind] = WIRE_KINDS
        stops_at: frozenset[str] = frozenset()
        if spec.mutant:
            mutant = MUTANTS[spec.mutant]
            mutant.apply()
            kinds, stops_at = mutant.kinds, mutant.expects
        plans = plan_loads(spec.seed, exchanges, spec.loads, kinds)[spec.lane :: spec.lanes]
        return run_loads(site, conductor, plans, on_batch=on_batch, stops_at=stops_at)
    finally:
        conductor.close()
        proxy.close()
        site.close()


def run_in_processes(specs: Sequence[LaneSpec], on_batch: Callable[[Tally], None]) -> None:
    """`on_batch` is called by one thread at a time."""
    lock = threading.Lock()
    with ExitStack() as stack:
        lanes = [_Lane(spec, stack.enter_context(tempfile.TemporaryFile("w+")), stack) for spec in specs]

        def read(lane: _Lane) -> None:
            for tally in lane.tallies():
                with lock:
                    on_batch(tally)

        threads = [threading.Thread(target=read, args=(lane,)) for lane in lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for lane in lanes:
            lane.check()


class _Lane:
    """A process, killed at the end of the stack."""

    def __init__(self, spec: LaneSpec, errors: IO[str], stack: ExitStack) -> None:
        self._errors = errors  # psycopg2 writes to it when a connection is lost within a COPY
        argv = [sys.executable, "-m", "tests.target_proof.lanes", json.dumps(asdict(spec))]
        self._process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT)
        stack.callback(self._process.wait)
        stack.callback(self._process.kill)

    def tallies(self) -> Iterator[Tally]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield decode_tally(json.loads(line))

    def check(self) -> None:
        if code := self._process.wait():
            self._errors.seek(0)
            raise RuntimeError(f"a process of the proof ended with {code}: {self._errors.read()[-4000:]}")


def encode_tally(tally: Tally) -> dict[str, Any]:
    return {
        "loads": tally.loads,
        "attempts": tally.attempts,
        "seconds": tally.seconds,
        "faults": [[*key, count] for key, count in tally.faults.items()],
        "orders": tally.orders,
        "shapes": tally.shapes,
        "violations": [[number, {**vars(v), "job_id": str(v.job_id)}] for number, v in tally.violations],
    }


def decode_tally(values: dict[str, Any]) -> Tally:
    return Tally(
        values["loads"],
        values["attempts"],
        Counter({(kind, step, side): count for kind, step, side, count in values["faults"]}),
        Counter(values["orders"]),
        Counter(values["shapes"]),
        [
            (number, Violation(**{**fields, "job_id": UUID(fields["job_id"])}))
            for number, fields in values["violations"]
        ],
        values["seconds"],
    )


def main(text: str) -> None:
    def write(tally: Tally) -> None:
        sys.stdout.write(json.dumps(encode_tally(tally)) + "\n")
        sys.stdout.flush()

    prepare_process()
    run_lane(LaneSpec(**json.loads(text)), write)


if __name__ == "__main__":
    main(sys.argv[1])
