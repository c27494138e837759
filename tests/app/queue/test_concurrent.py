"""Several processes do whatever can be done, at once; then the journal alone is asked whether all went well."""

from __future__ import annotations

from contextlib import ExitStack

from dataloader.app.queue.job import Transition
from tests.support import Process, eventually
from tests.support.queue_load import QUEUES

PROCESSES, SECONDS = 4, 3
CODE = "import sys; from tests.support.queue_load import main; main(*sys.argv[1:])"


def test_concurrent_changes_agree_with_events(own_queue_db, tmp_path):
    queue_db = own_queue_db
    with ExitStack() as running:
        storms = [
            running.enter_context(
                Process.python(CODE, queue_db.dsn, str(seed), str(SECONDS), output=tmp_path / f"storm-{seed}.log")
            )
            for seed in range(PROCESSES)
        ]
        for storm in storms:
            assert storm.wait(90) == 0, storm.text

    assert all(int(storm.lines[-1].split()[1]) > 50 for storm in storms)
    result = queue_db.check_invariants()
    moves = {move for life in result.values() for _, move, _ in life.transitions}
    assert moves == set(Transition), "not everything was tried"
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    assert queue_db.fetch_row(deadlocks) == 0

    # What was held is given up by the reaper, and a single claimer drains the rest.
    eventually(
        lambda: (
            len(queue_db.reap()) == 0
            and queue_db.fetch_row("SELECT count(*) FROM dl_jobs WHERE status = 'running'") == 0
        )
    )
    left = queue_db.fetch_row("SELECT count(*) FROM dl_jobs WHERE status = 'queued'")
    drained = 0
    while True:
        runs = [run for queue in QUEUES for run in queue_db.claim(10, queue=queue)]
        if not runs and not queue_db.repair_blocked():
            break
        for run in runs:
            assert queue_db.settle(run).outcome == "applied"
            drained += 1

    assert drained == left
    assert {life.status.final for life in queue_db.check_invariants().values()} == {True}
