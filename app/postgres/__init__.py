"""The embedded PostgreSQL: a server of our own where the settings name none. It knows nothing of jobs."""

from dataloader.app.postgres.server import EmbeddedServer

__all__ = ["EmbeddedServer"]
