"""Mutants of leases by the heartbeats of processes, and of appended progress."""

from __future__ import annotations

from collections.abc import Sequence

from tests.chaos.mutant import FunctionEdit, Mutant, StatementEdit, replace_attribute


def _ignore_row_lease() -> None:
    from dataloader.workers.attempt import Lease

    replace_attribute(Lease, "ends_at", property(lambda self: self.renewed_at + self.ttl_sec))


LEASE_MUTANTS: Sequence[Mutant] = (
    Mutant(
        "beat-without-ownership",
        "a heartbeat does not read which runs the process still owns, and no lease ends with its row",
        "frozen stubborn runs",
        patch=_ignore_row_lease,
        edits=[StatementEdit("beat", r"WHERE j\.job_id IS NULL OR ", "WHERE ")],
        expects=("trusted after reap",),
    ),
    Mutant(
        "row-lease-too-short",
        "the lease of a renewed row ends before the row is renewed again, and no heartbeat renews it sooner",
        "long runs",
        edits=[
            StatementEdit("renew", r"secs => owned\.next_sec \+ greatest", "secs => greatest"),
            StatementEdit("beat", r"OR coalesce\(j\.lease_expires_at, '-infinity'\)[^)]*\)[^)]*\)", ""),
        ],
        expects=("live run looks dead", "trusted after reap"),
    ),
    Mutant(
        "reap-without-progress",
        "the row of a reaped job does not get the last progress of the run",
        "killed workers",
        edits=[StatementEdit("reap", r"progress = dl_current_progress\([^\n]*", "")],
        expects=("progress went back",),
    ),
    Mutant(
        "lease-end-without-row",
        "the lease of a run ends with the heartbeats of its process alone, whatever its row says",
        "database away",
        functions=[FunctionEdit("dl_lease_end", r"coalesce\(lease_expires_at, '-infinity'\),", "'infinity',")],
        expects=("job not finished",),
    ),
    Mutant(
        "progress-without-fence",
        "progress is saved whether the run owns its job or not",
        "stubborn runs",
        edits=[
            StatementEdit("save_progress", r"SELECT j\.job_id, j\.run_id", "SELECT j.job_id, r.run_id"),
            StatementEdit("save_progress", r" AND j\.run_id = r\.run_id AND j\.status::text = 'running'", ""),
        ],
        expects=("progress of a lost run",),
    ),
)  # fmt: skip
