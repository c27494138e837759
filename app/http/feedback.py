"""Votes on the service over HTTP, kept for callers of the previous service."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

from dataloader.app.http.middleware import RequestMetrics
from dataloader.app.http.routing import ANY_KEY, ApiBlueprint


@dataclass(frozen=True)
class Feedback:
    likes: int
    dislikes: int


def create_feedback_blueprint(request_metrics: RequestMetrics) -> ApiBlueprint:
    blueprint = ApiBlueprint("feedback", "/api/v1/feedback")
    counts, lock = Counter({"like": 0, "dislike": 0}), threading.Lock()

    def add_vote(vote: str) -> Feedback:
        request_metrics.feedback.labels(vote).inc()
        with lock:
            counts[vote] += 1
            return Feedback(counts["like"], counts["dislike"])

    @blueprint.post("/like", response=Feedback, scope=ANY_KEY)
    def like_service() -> Feedback:
        """Vote for the service. Counted in this process since its start."""
        return add_vote("like")

    @blueprint.post("/dislike", response=Feedback, scope=ANY_KEY)
    def dislike_service() -> Feedback:
        """Vote against the service. Counted in this process since its start."""
        return add_vote("dislike")

    return blueprint
