"""Decides jobs whose parents have all ended, which the end of a parent should have done."""

from __future__ import annotations

from dataloader.app import log
from dataloader.app.features.graphs.rows import Graphs
from dataloader.workers.duties import Duty, DutyContext

_log = log.get(__name__)
_INTERVAL_SEC = 1.0


def create_duties(context: DutyContext) -> list[Duty]:
    graphs = Graphs(context.executor)
    return [Duty("graphs", _INTERVAL_SEC, lambda: _decide_left(graphs), has_work="has_graph_work")]


def _decide_left(graphs: Graphs) -> float | None:
    decided, found = graphs.decide_left()
    if decided:
        _log.info("waiting_jobs.decided", jobs=decided)
    return 0.0 if decided and found else None
