"""Sources as pipelines meet them: real HTTP on loopback, well-behaved or not."""

from tests.support_sources.fake_context import RecordingContext, start_task
from tests.support_sources.server import Reply, Request, SourceServer

__all__ = ["RecordingContext", "Reply", "Request", "SourceServer", "start_task"]
