"""Votes on the service over HTTP, kept for callers of the previous service."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from app.web.middleware import RequestMetrics
from app.web.options import WebOptions
from app.web.routing import ANY_KEY, ApiBlueprint


@dataclass(frozen=True)
class Feedback:
    likes: int
    dislikes: int


class Votes:
    """Counts the votes of this process since its start."""

    def __init__(self, request_metrics: RequestMetrics) -> None:
        self._request_metrics = request_metrics
        self._lock = threading.Lock()
        self._counts = {"like": 0, "dislike": 0}

    def add(self, vote: str) -> Feedback:
        self._request_metrics.feedback.labels(vote).inc()
        with self._lock:
            self._counts[vote] += 1
            return Feedback(self._counts["like"], self._counts["dislike"])


def create_feedback_blueprint(request_metrics: RequestMetrics, options: WebOptions) -> ApiBlueprint:
    blueprint = ApiBlueprint("feedback", "/api/v1/feedback")
    votes = Votes(request_metrics)

    @blueprint.post("/like", response=Feedback, scope=ANY_KEY)
    def like_service() -> Feedback:
        """Vote for the service. Counted in this process since its start."""
        return votes.add("like")

    @blueprint.post("/dislike", response=Feedback, scope=ANY_KEY)
    def dislike_service() -> Feedback:
        """Vote against the service. Counted in this process since its start."""
        return votes.add("dislike")

    return blueprint
