"""One rehearsal: a campaign whose processes are replaced, and whose tables are migrated, while it runs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from tests.chaos.campaign import conclude
from tests.chaos.environment import CampaignSize, Environment, make_environment
from tests.chaos.fault_runner import FaultRunner, InjectedFault
from tests.chaos.report import Report
from tests.chaos.schedule import plan_faults
from tests.chaos.services import ManagedService, service_environment
from tests.rehearsal.lock_waits import LockWaits
from tests.rehearsal.orders import ORDERS, Order
from tests.rehearsal.releases import Release, version_of
from tests.support.processes import ROOT, clean_environment

MAX_LOCK_WAIT_SEC = 1.0
_MIGRATE_TIMEOUT_SEC = 300.0
_STOP_TIMEOUT_SEC = 60.0
_START_TIMEOUT_SEC = 90.0
_API_ERROR = '"event": "api.error"'
_OUTDATED = 65  # the exit code of a process that needs a migration
_REAPED = ("lease_expired", "process_died")


@dataclass
class Result:
    order: str
    report: Report
    migrations: list[tuple[str, float]] = field(default_factory=list)  # release, seconds
    longest_wait_sec: float = 0.0
    longest_wait: str = ""
    reaped: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.report.passed and not self.problems


class Rehearsal:
    def __init__(
        self, environment: Environment, releases: Mapping[str, Release], *, log: Callable[[str], None]
    ) -> None:
        self._environment, self._releases, self._log = environment, releases, log
        self.migrations: list[tuple[str, float]] = []
        self.problems: list[str] = []
        self.waits = LockWaits(lambda: environment.primary.connect(timeout_sec=3, name="rehearsal"))
        for service in environment.services:
            self._set_release(service, "this")

    def run(self, order: Order, seconds: float, began: float) -> None:
        """Returns when the last act is done."""
        for share, act in order.acts:
            time.sleep(max(0.0, began + share * seconds - time.monotonic()))
            try:
                act(self)
            except Exception as error:  # what it has found is reported with the campaign's own findings
                self.problems.append(f"{type(error).__name__}: {error}")

    def migrate(self, name: str) -> None:
        """As an operator does it: again, until it succeeds, since the server may be down just now."""
        deadline = time.monotonic() + _MIGRATE_TIMEOUT_SEC
        while True:
            began = time.monotonic()
            with self.waits.watching():
                done = self._run_command(name, "migrate")
            if done.returncode == 0:
                break
            self._log(f"  migrate by {name}: {(done.stdout + done.stderr).strip()[-300:]}")
            assert time.monotonic() < deadline, f"migrate by {name} never succeeded: {done.stderr[-500:]}"
            time.sleep(1)
        self.migrations.append((name, time.monotonic() - began))
        self._log(f"  migrated by {name} in {self.migrations[-1][1]:.2f} s: {done.stdout.strip().splitlines()[-1]}")

    def replace(self, name: str, numbers: Sequence[int]) -> None:
        """Stop processes with SIGTERM, and start those of the release in their place."""
        for number in numbers:
            service = self._environment.services[number]
            service.is_kept_down = True
            service.stop(_STOP_TIMEOUT_SEC)
            self._set_release(service, name)
            service.start()
            service.is_kept_down = False
            self._log(f"  {service.name} is of {name} now")

    def expect_refused(self, name: str) -> None:
        """A process that needs a migration ends with a code of its own, and says what to do."""
        done = self._run_command(name, "worker")
        text = done.stdout + done.stderr
        assert done.returncode == _OUTDATED, f"a worker of {name} ended with {done.returncode}: {text[-500:]}"
        assert "dataloader migrate" in text, text[-500:]
        self._log(f"  a worker of {name} was refused")

    def wait_for_versions(self, expected: set[str]) -> Counter[str]:
        """Of the live processes, when all are there again that the last fault has killed."""
        deadline = time.monotonic() + _START_TIMEOUT_SEC
        while set(versions := self._live_versions()) != expected or versions.total() < len(self._environment.services):
            if time.monotonic() > deadline:
                break
            time.sleep(0.5)
        return versions

    def _live_versions(self) -> Counter[str]:
        return Counter(v for (v,) in self._environment.primary.query(
            "SELECT w.version FROM dl_workers w JOIN dl_live_workers() l USING (worker_id)"))  # fmt: skip

    def _set_release(self, service: ManagedService, name: str) -> None:
        release = self._releases[name]
        service.code = release.folder
        if service.argv[0] == "gunicorn":
            service.argv = release.gunicorn

    def _run_command(self, name: str, command: str) -> subprocess.CompletedProcess[str]:
        folder = self._releases[name].folder
        settings = service_environment(self._environment.primary.dsn, self._environment.observer.dsn)
        environment = {**clean_environment(), **settings, "PYTHONPATH": f"{folder}:{ROOT}", "PATH": os.environ["PATH"]}
        return subprocess.run(
            [sys.executable, "-m", "dataloader", command], cwd=folder, env=environment, timeout=_MIGRATE_TIMEOUT_SEC,
            capture_output=True, text=True, check=False,
        )  # fmt: skip


def rehearse(
    name: str, releases: Mapping[str, Release], *, seed: int, seconds: float, past_jobs: int, has_faults: bool,
    log: Callable[[str], None], folder: Path | None = None,
) -> Result:  # fmt: skip
    """Load, faults and an upgrade for so many seconds, then quiet, then judgement."""
    order, planned = ORDERS[name], plan_faults(seed, seconds) if has_faults else []
    log(f"{name}: {order.text}; {past_jobs:,} past jobs, {len(planned)} faults in {seconds:.0f} s")
    with make_environment(seed, CampaignSize(past_jobs=past_jobs), log=log) as made:
        rehearsal = Rehearsal(made, releases, log=log)
        made.start()
        began = time.monotonic()
        acts = threading.Thread(target=rehearsal.run, args=(order, seconds, began), name="upgrade", daemon=True)
        acts.start()
        injected: list[InjectedFault] = FaultRunner(made, planned, log=log).run()
        acts.join()
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        made.heal()
        expected = {version_of(releases[release]) for release in order.ends_with}
        versions = rehearsal.wait_for_versions(expected)
        log(f"  live processes: {dict(versions)}")
        report = conclude(made, injected, seconds=seconds)
        for service in made.services:
            errors = (line for line in service.text().splitlines() if '"traceback"' in line and _API_ERROR in line)
            for line in islice(errors, 3):
                log(f"  {service.name}: {line[-2500:]}")
        ((reaped,),) = made.primary.query(
            "SELECT count(*) FROM dl_job_events WHERE payload ->> 'reason' = ANY (%s)", list(_REAPED)
        )
    wait = rehearsal.waits.longest
    result = Result(
        name, report, rehearsal.migrations, wait.seconds if wait else 0.0, wait.statement if wait else "",
        int(reaped), list(rehearsal.problems),
    )  # fmt: skip
    if set(versions) != expected:
        result.problems.append(f"at the end processes of {sorted(versions)} were live, not of {sorted(expected)}")
    if result.longest_wait_sec > MAX_LOCK_WAIT_SEC:
        result.problems.append(f"a statement waited {result.longest_wait_sec:.2f} s: {result.longest_wait}")
    if not has_faults and reaped:
        result.problems.append(f"{reaped} attempts were used up, though nothing failed")
    return result
