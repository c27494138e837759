"""Runs loads and checks them, some at a time; counts what was met."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from tests.target_proof.conductor import Conductor, LoadRecord
from tests.target_proof.loads import expected_parts, keeps_position
from tests.target_proof.plan import LoadPlan
from tests.target_proof.rules import LoadEvidence, Violation, check
from tests.target_proof.site import Site

_BATCH = 20  # loads that are checked together


@dataclass
class Tally:
    """What was met, and what was wrong."""

    loads: int = 0
    attempts: int = 0
    faults: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # by kind, step and side
    orders: Counter[str] = field(default_factory=Counter)  # where zombies were thawed, or their sessions ended
    shapes: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[int, Violation]] = field(default_factory=list)  # with the number of the load's plan
    seconds: float = 0.0

    def add(self, other: Tally) -> None:
        self.loads += other.loads
        self.attempts += other.attempts
        self.faults += other.faults
        self.orders += other.orders
        self.shapes += other.shapes
        self.violations += other.violations

    def add_record(self, record: LoadRecord) -> None:
        self.loads += 1
        self.attempts += record.attempts
        self.shapes[record.plan.shape] += 1
        self.faults.update((str(kind), step, str(side)) for kind, step, side in record.reached)
        self.orders.update(record.orders)

    def text(self) -> str:
        """As Markdown, for the docs."""
        kinds = sorted({kind for kind, _, _ in self.faults})
        by_step: Counter[tuple[str, str]] = Counter()
        for (kind, step, _), count in self.faults.items():
            by_step[step, kind] += count
        lines = [f"| place | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
        for step in sorted({step for step, _ in by_step}):
            lines.append(f"| {step} | {' | '.join(str(by_step[step, kind]) for kind in kinds)} |")
        lines += ["", "| order | times |", "|---|---|"]
        lines += [f"| {order} | {count} |" for order, count in self.orders.most_common()]
        rules = Counter(violation.rule for _, violation in self.violations)
        lines += [
            "",
            f"{self.loads} loads ({', '.join(f'{count} {shape}' for shape, count in sorted(self.shapes.items()))}),"
            f" {self.attempts} attempts, {sum(self.faults.values())} faults at {len(self.faults)} kinds of places,"
            f" {self.seconds:.0f} s",
            f"violations: {dict(rules) or 'none'}",
        ]
        return "\n".join(lines)


def run_loads(
    site: Site,
    conductor: Conductor,
    plans: Iterable[LoadPlan],
    *,
    on_batch: Callable[[Tally], None] = lambda tally: None,
    stops_at: Collection[str] = (),
) -> Tally:
    """`on_batch` gets what came since the last call. `stops_at`: rules of which one violation is enough."""
    total, batch, records = Tally(), Tally(), list[LoadRecord]()
    began = time.monotonic()

    def conclude() -> None:
        nonlocal batch
        for evidence, record in zip(evidence_of(site, records), records, strict=True):
            batch.violations += [(record.plan.number, violation) for violation in check(evidence)]
        records.clear()
        on_batch(batch)
        total.add(batch)
        batch = Tally()

    for plan in plans:
        record = conductor.run(plan)
        records.append(record)
        batch.add_record(record)
        if len(records) >= (1 if stops_at else _BATCH):
            conclude()
            if any(violation.rule in stops_at for _, violation in total.violations):
                break
    conclude()
    total.seconds = time.monotonic() - began
    return total


def evidence_of(site: Site, records: Sequence[LoadRecord]) -> list[LoadEvidence]:
    if not records:
        return []
    ids = [record.job_id for record in records]
    jobs = site.jobs(ids)
    effects = {dsn: site.effects(dsn, ids) for dsn in site.target_dsns}
    return [
        LoadEvidence(
            job_id=record.job_id,
            shape=record.plan.shape,
            parts=(parts := expected_parts(record.plan.shape, record.plan.parts)),
            with_position=frozenset(target for target in parts if keeps_position(record.plan.shape, target)),
            result={"parts": record.plan.parts},
            job=jobs.get(record.job_id),
            targets={target: effects[record.databases[target]][record.job_id] for target in parts},
            refused_owners=record.refused_owners,
            problems=record.problems,
        )
        for record in records
    ]
