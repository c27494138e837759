"""That a job waits for others."""

from __future__ import annotations

from collections.abc import Iterator

from dataloader.app.acts.reasons import MAX_LISTED, ExplanationReason, ReasonCode, Reasons, WaitingJob
from dataloader.app.features.graphs.rows import Graphs, ParentJob
from dataloader.app.queue.job import Job
from dataloader.app.wording import format_count


class GraphReasons(Reasons):
    def of_job(self, waiting: WaitingJob) -> Iterator[ExplanationReason]:
        if waiting.wait_state == "waiting":
            open_parents = [p for p in Graphs(self.executor).parents(waiting.job.id) if p.met is None]
            if open_parents:
                yield parents_reason(waiting.job, open_parents)


def parents_reason(job: Job, open_parents: list[ParentJob]) -> ExplanationReason:
    shown = ", ".join(
        f"{parent.key} ({parent.status.value}, job {parent.job_id})" for parent in open_parents[:MAX_LISTED]
    )
    more = len(open_parents) - MAX_LISTED
    of = "the first of its parents that ends as asked" if job.need == "any" else format_count(len(open_parents), "job")
    message = f"It waits for {of}: {shown}{f' and {more} more' if more > 0 else ''}."
    listed = [{"job_id": p.job_id, "key": p.key, "status": p.status, "on": p.on} for p in open_parents[:MAX_LISTED]]
    details = {"graph_id": job.graph_id, "open": len(open_parents), "parents": listed}
    return ExplanationReason(ReasonCode.WAITS_FOR_JOBS, message, details)
