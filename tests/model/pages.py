"""What docs/protocol.md and docs/protocol-limits.md take from the model. `python -m docs.make` writes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from tests.model.actions import ACTIONS
from tests.model.configurations import CONFIGURATIONS, LARGE, SMALL
from tests.model.explore import Result, Search, steps
from tests.model.mutants import CAMPAIGN_MUTANTS, MORE_MUTANTS, TRACE_MUTANTS
from tests.model.rows import Row
from tests.model.rules import rule_texts
from tests.model.state import INVARIANTS, Configuration, State
from tests.model.statements import ACTION_OF, OUTSIDE
from tests.model.stories import describe
from tests.model.symmetry import Symmetry

# Small ones, which have every move together.
_DRAWN = ("cancels", "answers", "rows", "by hand", "retries", "pause", "join", "chain", "server", "locks")
# A fault, the configuration in which it is shown, and how it begins: of these labels the first that fits is taken.
_FAULTS: Mapping[str, tuple[str, tuple[str, ...], str]] = {
    "A worker process dies": ("crashes alone", ("claims job",), "dies"),
    "A worker process is frozen past its lease": (
        "frozen alone",
        ("claims job", "is frozen", "the deadline of", "expires", "a reaper finds", "the time of a heartbeat"),
        "a reaper takes",
    ),
    "The answer of a claim is lost": ("answers", (), "claims job 0 as run 1, and the answer is lost"),
    "The answer of a settlement is lost": ("answers", ("claims job",), "as succeeded, and the answer is lost"),
    "The session with the key locks ends": ("sessions", ("claims job",), "the session of P0 ends"),
    "The server crashes": ("server", ("is accepted", "claims job"), "the server crashes"),
    "A process forgets a run": ("forgotten runs", ("claims job",), "forgets run"),
    "An `UPDATE` queues a running job": ("by hand", ("claims job",), "an UPDATE queues"),
    "A settlement is lost by an asynchronous failover": (
        "failover", ("claims job", "are copied", "as succeeded"), "a standby is promoted",
    ),
    "A claim is lost by an asynchronous failover": ("failover", ("are copied", "claims job"), "a standby is promoted"),
    "A process dies in a transaction in a target": (
        "target, crash", ("claims job", "claims its row", "begins part 0"), "dies",
    ),
    "A process dies between its last commit in a target and the settlement": (
        "target, crash",
        ("claims job", "claims its row", "begins part 0", "commits part 0", "begins part 1", "commits part 1"),
        "dies",
    ),
}  # fmt: skip
_EXTRA = {
    "crashes alone": replace(CONFIGURATIONS["rows"], groups=frozenset({"crash"})),
    "frozen alone": replace(CONFIGURATIONS["rows"], groups=frozenset({"freeze"})),
}


def _words(function: object) -> str:
    return " ".join((function.__doc__ or "").split())


# ── moves ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _place(row: Row) -> str:
    return row.wait if row.status == "queued" else row.status


def moves() -> Mapping[tuple[str, str], set[str]]:
    """From where to where rows go in all states of some configurations, and by which actions."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for config in (CONFIGURATIONS[drawn] for drawn in _DRAWN):
        search = Search(config)
        search.run(Result(config=config), float("inf"))
        for name, action in ((n, each) for n, each in ACTIONS.items() if each.group in ("core", *config.groups)):
            for state in search.states:
                for step in action.function(config, state):
                    for before, after in zip(state.rows, step.state.rows, strict=True):
                        if _place(before) != _place(after):
                            found[_place(before), _place(after)].add(name)
    return found


def move_diagram() -> str:
    arrows = [
        f"    {before} --> {after}: {', '.join(sorted(names))}" for (before, after), names in sorted(moves().items())
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", *arrows, "```", ""])


def action_table() -> str:
    """Who does what, and by which statements."""
    statements: dict[str, list[str]] = defaultdict(list)
    for statement, names in ACTION_OF.items():
        for name in names.split(", "):
            statements[name].append(f"`{statement}`")
    lines = ["| by | action | what it does | statements and functions |", "|---|---|---|---|"]
    for name, action in sorted(ACTIONS.items(), key=lambda each: (each[1].by, each[0])):
        lines.append(f"| {action.by} | `{name}` | {_words(action.function)} | {', '.join(statements[name])} |")
    return "\n".join([*lines, ""])


# ── faults ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def fault_table() -> str:
    """What each fault leaves, and the shortest way from there to the end by what happens by itself."""
    lines = ["| fault | leaves | and then |", "|---|---|---|"]
    for title, (name, before, label) in _FAULTS.items():
        config = _EXTRA.get(name) or CONFIGURATIONS[name]
        state = config.initial()
        for part in (*before, label):
            state = next(step.state for step in steps(config, state) if part in step.label)
        lines.append(f"| {title} | {describe(config, state)} | {'; '.join(_way_to_end(config, state))} |")
    return "\n".join([*lines, ""])


def _way_to_end(config: Configuration, first: State) -> list[str]:
    """The shortest; one that ends with a success, if any does."""
    symmetry, ends = Symmetry(config), []
    seen, paths = {symmetry.canonical(first)}, [(first, [""])]
    for state, labels in paths:
        if config.is_end(state):
            ends.append((state.rows[0].status != "succeeded", len(labels), labels[1:]))
        for step in steps(config, state):
            name = symmetry.canonical(step.state)
            if step.is_fair and name not in seen:
                seen.add(name)
                paths.append((step.state, [*labels, step.label]))
    return min(ends)[2]


# ── promises, rules, what is left out ───────────────────────────────────────────────────────────────────────────────


def promise_table() -> str:
    lines = ["| promise | in words |", "|---|---|"]
    for name, check in INVARIANTS.items():
        lines.append(f"| {name.replace('_', ' ')} | {_words(check)} |")
    lines.append("| progress | From every state an end is reachable by steps that happen by themselves. |")
    lines.append("| every step | A change of a row has its event, and is one that `TRANSITIONS` allows. |")
    return "\n".join([*lines, ""])


def rule_table() -> str:
    """What fails without each rule."""
    lines = ["| rule | without it | mutant |", "|---|---|---|"]
    texts = rule_texts()
    for mutant in (*CAMPAIGN_MUTANTS, *MORE_MUTANTS):
        rules = "; ".join(texts[rule] for rule in mutant.rules)
        lines.append(f"| {rules} | {mutant.promise or 'nothing fails'} | `{mutant.name}` |")
    lines += ["", "Of these mutants the trace check says:", "", "| mutant | refused as |", "|---|---|"]
    lines += [f"| `{name}` | {message} … |" for name, message in TRACE_MUTANTS.items()]
    return "\n".join([*lines, ""])


def configuration_table() -> str:
    lines = [
        "| configuration | processes | jobs | more actions | not promised there |",
        "|---|---|---|---|---|",
    ]
    for config in (*SMALL, *LARGE):
        keys = len({job.key for job in config.jobs})
        jobs = f"{len(config.jobs)} of {keys} key{'s' * (keys > 1)}"
        left_out = ", ".join(sorted(config.left_out)).replace("_", " ")
        lines.append(
            f"| {config.name} | {config.processes} | {jobs} | {', '.join(sorted(config.groups))} | {left_out} |"
        )
    return "\n".join([*lines, ""])


def outside_table() -> str:
    """Statements that touch jobs and are no action."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for statement, reason in OUTSIDE.items():
        by_reason[reason].append(f"`{statement}`")
    lines = ["| statements and functions | why they are no action |", "|---|---|"]
    lines += [f"| {', '.join(names)} | {reason} |" for reason, names in by_reason.items()]
    return "\n".join([*lines, ""])
