"""Compares the engines of DL_EXECUTORS with what is installed here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dataloader.app.acts.findings import Finding, error, ok


def check_engines(problems: Mapping[str, str]) -> Iterator[Finding]:
    """Of each engine why it cannot be used; empty if it can."""
    for name, problem in problems.items():
        if problem:
            yield error(
                "engine",
                f"the engine {name!r} cannot be used: {problem}",
                "repair its entry in DL_EXECUTORS, or install what it needs where the workers run, as docs/offload.md "
                "describes; until then each job that gives work to it fails",
                engine=name,
                problem=problem,
            )
    if problems and not any(problems.values()):
        yield ok("engine", f"engines that can be used: {', '.join(sorted(problems))}")
