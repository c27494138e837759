"""Sources as pipelines meet them: real HTTP on loopback, well-behaved or not."""

from tests.support_sources.server import Reply, Request, SourceServer
from tests.support_sources.told import Told

__all__ = ["Reply", "Request", "SourceServer", "Told"]
