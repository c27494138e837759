"""Mutants of what a start waits for: limits, rates, graphs, pauses and breakers."""

from __future__ import annotations

from collections.abc import Sequence

from tests.chaos.mutant import FunctionEdit, Mutant, replace_attribute


def _never_sweep_limits() -> None:
    from dataloader.app.features.limits.duty import LimitsDuty

    replace_attribute(LimitsDuty, "run", lambda self: None)


_SLOW, _ALWAYS = "interval '5 ms'", "interval '-1 s'"  # what takes longer is slow
_KEEP_ALL_LOOKS = [FunctionEdit(name, _SLOW, _ALWAYS) for name in ("dl_take_limit_look", "dl_wake_limited")]

LIMIT_MUTANTS: Sequence[Mutant] = (
    Mutant(
        "limit-without-lock",
        "nothing locks a limit: two claims count before either has started its jobs",
        "limits",
        functions=[FunctionEdit("dl_lock_limits", r"(?s)PERFORM pg_advisory.*?ordered;", "NULL;")],
        expects=("limit exceeded",),
    ),
    Mutant(
        "limit-counted-before-lock",
        "a claim counts the running jobs before it has the limit's lock",
        "limits",
        functions=[
            FunctionEdit(
                "dl_apply_limits",
                r"(?s)PERFORM dl_lock_limits\(names \|\| woken_names\);(.*?FROM dl_limit_states\(names\) s;)",
                r"\1 PERFORM dl_lock_limits(names || woken_names);",
            )
        ],
        expects=("limit exceeded",),
    ),
    Mutant(
        "limit-start-not-in-look",
        "limits are counted from their last look, to which claims add no job",
        "limits",
        functions=[
            *_KEEP_ALL_LOOKS,
            FunctionEdit("dl_apply_limits", r"(?s)INSERT INTO dl_limit_looks.*?IS NOT NULL;", "", [(_SLOW, _ALWAYS)]),
        ],
        expects=("limit exceeded",),
    ),
    Mutant(
        "limit-no-wake-no-sweep",
        "the end of a run wakes no limited job, and no sweep follows",
        "limits",
        functions=[FunctionEdit("dl_jobs_ended", r"IF limit_names <> '\{}'", "IF false")],
        patch=_never_sweep_limits,
        expects=("job left limited",),
    ),
    Mutant(
        "limit-no-sweep",
        "no sweep wakes limited jobs: the ends of runs wake all of them",
        "limits",
        patch=_never_sweep_limits,
    ),
    Mutant(
        "graph-without-lock",
        "nothing locks a graph: two last parents that commit together each see the other's edge open",
        "graphs over many processes",
        functions=[
            FunctionEdit(
                "dl_decide_children",
                r"(?s)IF coalesce\(current_setting\('dl\.graph_changes'.*?END IF;(.*)(IF changed = decided)",
                r"\1 PERFORM pg_sleep(0.3); \2",  # the other parent ends before this end is visible
            )
        ],
        expects=("job left waiting", "job not finished"),
    ),
    Mutant(
        "graph-end-not-recorded",
        "the end of a job that did not succeed is not recorded for its children",
        "graphs",
        functions=[
            FunctionEdit(
                "dl_graph_job_changed", r"VALUES \(job\.job_id\)", "SELECT job.job_id WHERE job.status = 'succeeded'"
            )
        ],
        expects=("job left waiting", "job not finished"),
    ),
    Mutant(
        "graph-first-parent-decides",
        "the first parent that ended as asked is enough, whatever the job needs",
        "graphs",
        functions=[
            FunctionEdit(
                "dl_graph_verdicts",
                r"WHEN bool_and\(e\.met IS NOT NULL\) THEN false END END",
                "WHEN bool_or(e.met) THEN false END END",
            )
        ],
        expects=("started before parents ended",),
    ),
    Mutant(
        "graph-conditions-ignored",
        "a parent that failed counts as one that ended as asked",
        "graphs",
        functions=[
            FunctionEdit(
                "dl_decide_children", r"WHEN 'succeeded' THEN p\.status = 'succeeded'", "WHEN 'succeeded' THEN true"
            )
        ],
        expects=("started before parents ended", "not skipped"),
    ),
    Mutant(
        "graph-skip-ends-there",
        "a skipped job's own children are not decided",
        "graphs",
        functions=[
            FunctionEdit(
                "dl_graph_job_changed", r"VALUES \(job\.job_id\)", "SELECT job.job_id WHERE job.skipped IS NOT TRUE"
            )
        ],
        expects=("job left waiting", "job not finished"),
    ),
    Mutant(
        "pause-not-asked",
        "a claim does not look whether the task is paused",
        "paused task",
        functions=[FunctionEdit("dl_limit_states", r"task = n\.name AND state <> 'closed'", "task = n.name AND false")],
        expects=("started while paused",),
    ),
    Mutant(
        "breaker-closes-without-wake",
        "a breaker that closes wakes no job, and no sweep follows",
        "failing task",
        functions=[
            FunctionEdit("dl_count_outcomes", r"closed := closed \|\| [^;]*;", "NULL;"),
        ],
        patch=_never_sweep_limits,
        expects=("job left limited", "job not finished"),
    ),
    Mutant(
        "rate-not-recorded",
        "a start of a rate is not recorded",
        "rates",
        functions=[FunctionEdit("dl_apply_limits", r"(?s)INSERT INTO dl_limit_starts.*?tat = excluded\.tat;", "")],
        expects=("rate exceeded",),
    ),
)
