"""Faults that once were in the product, planted again one at a time, each with the tests that must fail then.

make planted-bugs           # each in a copy of the sources, after the same tests have passed there without it
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import ROOT

_MAX_OUTPUT_LINES = 15


@dataclass(frozen=True)
class PlantedBug:
    name: str
    file: str
    text: str  # the first place of it in the file is replaced
    bug: str
    tests: str  # a file, or one test of it


BUGS = (
    PlantedBug(
        "a bulk cancel wants the exact number of jobs", "app/features/bulk/rows.py",
        "if count.exact and count.jobs > max_jobs:", "if count.exact and count.jobs != expected:",
        "tests/app/features/bulk/test_rows.py::test_cancel_accepts_fewer_jobs_and_some_more",
    ),
    PlantedBug(
        "the server compiles a trigger's query for each row", "schema.sql",
        "SET enable_seqscan = off SET jit = off AS", "SET enable_seqscan = off AS",
        "tests/app/db/test_ordinary_owner.py::test_no_function_compiles_its_queries",
    ),
    PlantedBug(
        "a key reads results of another team", "app/http/jobs/job_maker.py",
        "return next(unseen, None)", "return None",
        "tests/app/http/auth/test_two_teams.py::test_a_foreign_parent_is_one_that_does_not_exist",
    ),
    PlantedBug(
        "a key of a foreign job shows the job", "app/http/jobs/job_maker.py",
        "return actor.sees_all_jobs or bool(self._visible_ids(actor, [job_id]))", "return True",
        "tests/app/http/auth/test_two_teams.py::test_a_key_of_a_foreign_job_is_a_conflict",
    ),
    PlantedBug(
        "a cancel by SQL passes all that it has canceled", "schema.sql",
        "IF OLD.wait_state <> 'blocked'\n           AND EXISTS", "IF EXISTS",
        "tests/app/queue/test_ends_by_sql.py::test_cancel_by_update_takes_the_same_time_for_each_of_many",
    ),
    PlantedBug(
        "a row with an infinite time stops the deferral of others", "app/queue/unknown_tasks.sql",
        "(date_part('epoch', clock_timestamp()) - date_part('epoch', j.created_at)) / 2",
        "extract(epoch FROM clock_timestamp() - j.created_at) / 2",
        "tests/app/queue/test_claims.py::test_unknown_task_with_an_infinite_time_is_deferred",
    ),
    PlantedBug(
        "SQL of a pool belongs to the job that started its thread", "workers/connections/own_sessions.py",
        'ThreadPoolExecutor.submit = _with_owner(ThreadPoolExecutor.submit, "fn")',
        "ThreadPoolExecutor.submit = ThreadPoolExecutor.submit",
        "tests/workers/connections/test_own_sessions.py::test_reused_thread_of_ended_attempt_works_for_who_submits",
    ),
    PlantedBug(
        "an act leaves no line in the audit file", "app/acts/web.py",
        "audit_action(call.event, **(act.audit_fields(path, body, query) | call.audited))", "_ = audit_action",
        "tests/app/features/test_every_way.py::test_every_way_does_the_same",
    ),
    PlantedBug(
        "a follow-up leaves out defaults of its task's args", "workers/follow_ups.py",
        '{**declared.get("defaults", {}), **job_args}', "job_args",
        "tests/workers/test_follow_ups.py::test_follow_up_counts_the_defaults_of_its_task",
    ),
    PlantedBug(
        "an account that may only enqueue reads results", "schema.sql",
        "ELSIF NOT is_reader OR NOT EXISTS", "ELSIF NOT EXISTS",
        "tests/app/db/test_roles.py::test_enqueuer_waits_for_no_job_that_it_may_not_read",
    ),
    PlantedBug(
        "a long error is masked as a whole", "workers/outcome.py",
        "_MAX_UNMASKED_LENGTH = 500_000", "_MAX_UNMASKED_LENGTH = 500_000_000",
        "tests/workers/test_outcome.py::test_long_error_is_cut_before_its_secrets_are_masked",
    ),
    PlantedBug(
        "a snooze of nothing runs again at once", "pipelines/retry.py",
        "self.seconds = max(MIN_SNOOZE_SEC, requested)", "self.seconds = requested",
        "tests/pipelines/test_retry.py::test_snooze_lasts_a_second_at_least",
    ),
    PlantedBug(
        "an odd value of a job's process ends its worker",
        "workers/isolation/child.py",
        "not all(isinstance(fields.get(name, ...), allowed) for name, allowed in types.items())",
        "not types.keys() <= fields.keys()",
        "tests/workers/isolation/test_messages.py::test_forged_end_with_odd_values_is_ignored",
    ),
    PlantedBug(
        "a read-only database is ready", "app/db/server.sql",
        "WHEN current_setting('transaction_read_only')::bool", "WHEN false",
        "tests/app/http/test_health.py",
    ),
    PlantedBug(
        "a time of infinity breaks pages", "app/wording.py",
        "return not _CALENDAR[0] < moment < _CALENDAR[1]", "return False",
        "tests/app/ui/test_odd_values.py",
    ),
    PlantedBug(
        "connections of a task's own outlive it", "app/runtime/service.py",
        "wrap_drivers()\n", "pass\n",
        "tests/system/test_own_connections.py::test_killed_worker_sql_ends_before_next_attempt",
    ),
    PlantedBug(
        "an ended job of an open graph is deleted", "app/features/jobs/edits.sql",
        "AND (graph_id IS NULL OR NOT dl_is_result_needed(job_id, graph_id))", "",
        "tests/app/features/graphs/test_routes.py",
    ),
    PlantedBug(
        "the picture of a graph is not drawn again after a refresh",
        "app/ui/static/graph.js",
        'document.addEventListener("htmx:after:swap", drawAll);',
        "",
        "tests/browser/test_job.py::test_graph_is_drawn_from_left_to_right",
    ),
    PlantedBug(
        "the overview does not show jobs that can never run", "app/features/doctor/problems.py",
        "problems_of(reads.get(read_findings))", "problems_of(reads.get(read_findings)[:0])",
        "tests/app/features/overview/test_problems.py::test_overview_names_tasks_that_no_worker_runs",
    ),
    PlantedBug(
        "a backfill does not say why its oldest job waits", "app/features/backfills/templates/backfill.html",
        "{% if waiting %}", "{% if false %}",
        "tests/app/features/backfills/test_pages.py::test_backfill_shows_why_its_oldest_job_waits",
    ),
    PlantedBug(
        "the reaper meets no heartbeat of the process", "app/queue/jobs.sql",
        "SELECT count(pg_advisory_xact_lock(1684828534, hash))", "SELECT count(hash)",
        "tests/app/queue/test_heartbeats.py::test_reaper_that_meets_a_heartbeat_leaves_the_run",
    ),
    PlantedBug(
        "the progress of a running job is that of its row", "schema.sql",
        "IF newest.ts > heartbeat_at THEN", "IF false THEN",
        "tests/app/queue/test_heartbeats.py::test_progress_is_appended_and_read_from_its_newest_row",
    ),
    PlantedBug(
        "a process keeps the lease of an attempt that it gave up", "workers/heartbeat.py",
        "locked = {str(run_id) for run_id in self._queue.disown(runs)}", "locked = set[str]()",
        "tests/workers/test_stopper.py::test_lost_lease_ends_the_process",
    ),
    PlantedBug(
        "a lease counts from the answer to the heartbeat", "workers/heartbeat.py",
        "attempt.lease.renewed_at = sent_at", "attempt.lease.renewed_at = clock()",
        "tests/workers/test_heartbeat.py::test_lease_is_trusted_from_when_the_heartbeat_was_sent",
    ),
    PlantedBug(
        "a late heartbeat is recorded after the end of its run", "app/queue/jobs.sql",
        "FOR SHARE OF j SKIP LOCKED) owned", ") owned",
        "tests/app/queue/test_heartbeats.py::test_late_heartbeat_is_not_recorded_after_the_end",
    ),
    PlantedBug(
        "the reaper takes a lease that ended twice for one that ended once", "workers/reaper.py",
        "before if before[2] == new[2] else new", "before",
        "tests/workers/test_reaper.py::test_lease_renewed_between_two_checks_starts_over",
    ),
    PlantedBug(
        "the reaper takes a run that was renewed while its sessions were being ended", "app/queue/jobs.sql",
        "AND coalesce(d.lease_end = ", "AND coalesce(true OR d.lease_end = ",
        "tests/app/queue/test_heartbeats.py::test_lease_that_ended_again_is_not_reaped",
    ),
    PlantedBug(
        "giving up a run lengthens its expired lease", "app/queue/jobs.sql",
        "SET lease_expires_at = least(", "SET lease_expires_at = coalesce(",
        "tests/app/queue/test_heartbeats.py::test_expired_lease_of_a_given_up_run_keeps_its_end",
    ),
    PlantedBug(
        "frequent schedules hide daily loads", "app/features/schedules/calendar_page.py",
        "frequent = [schedule for schedule in chosen if is_frequent(reader, schedule)]", "frequent = []",
        "tests/app/features/schedules/test_pages.py::test_frequent_schedules_hide_no_daily_load",
    ),
)  # fmt: skip


def main() -> int:
    """Return the number of bugs that no test noticed, or whose tests fail without them."""
    failed = list[str]()
    with tempfile.TemporaryDirectory(prefix="planted-bugs-") as folder:
        copy = Path(folder) / "sources"
        _copy_sources(copy)
        for bug in BUGS:
            problem = _try(bug, copy)
            failed += [bug.name] if problem else []
            print(f"{'MISSED ' if problem else 'caught '} {bug.name}\n{problem}".rstrip(), flush=True)  # noqa: T201
    print(f"{len(BUGS) - len(failed)} of {len(BUGS)} planted bugs were caught")  # noqa: T201
    return len(failed)


def _copy_sources(folder: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target, follow_symlinks=False)
    (folder / ".venv").symlink_to(ROOT / ".venv")


def _try(bug: PlantedBug, copy: Path) -> str:
    """Return what speaks against its tests; "" if they pass without the bug and fail with it."""
    if problem := _run(bug.tests, copy):
        return f"its tests fail without it:\n{problem}"
    file = copy / bug.file
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(bug.text, bug.bug, 1), encoding="utf-8")
    try:
        return "" if _run(bug.tests, copy) else f"{bug.tests} passed with it"
    finally:
        file.write_text(text, encoding="utf-8")


def _run(tests: str, copy: Path) -> str:
    """Return the end of the output of tests that fail; "" if they pass."""
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-m", "", tests]
    done = subprocess.run(words, cwd=copy, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"pytest ended with {done.returncode} for {tests}:\n{done.stdout}{done.stderr}")
    return "" if done.returncode == 0 else "\n".join(done.stdout.splitlines()[-_MAX_OUTPUT_LINES:])


if __name__ == "__main__":
    sys.exit(min(main(), 1))
