"""Votes on the service, kept for the callers of the service that was there before."""

from __future__ import annotations

import threading

from app.web.metrics import Traffic
from app.web.models import Feedback
from app.web.operations import ANY_KEY, Subject
from app.web.options import WebOptions


class Votes:
    """Counted in this process since its start."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._lock = threading.Lock()
        self._likes = 0
        self._dislikes = 0

    def like(self) -> Feedback:
        return self._vote(likes=1)

    def dislike(self) -> Feedback:
        return self._vote(dislikes=1)

    def _vote(self, *, likes: int = 0, dislikes: int = 0) -> Feedback:
        self._traffic.feedback.labels("like" if likes else "dislike").inc()
        with self._lock:
            self._likes += likes
            self._dislikes += dislikes
            return Feedback(self._likes, self._dislikes)


def feedback(traffic: Traffic, options: WebOptions) -> Subject:
    subject = Subject("feedback", "/api/v1/feedback", options.max_json_depth)
    votes = Votes(traffic)

    @subject.post("/like", answer=Feedback, scope=ANY_KEY)
    def like() -> Feedback:
        """Say that the service does well. Counted in this process since its start."""
        return votes.like()

    @subject.post("/dislike", answer=Feedback, scope=ANY_KEY)
    def dislike() -> Feedback:
        """Say that the service does badly. Counted in this process since its start."""
        return votes.dislike()

    return subject
