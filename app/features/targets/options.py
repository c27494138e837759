"""What the settings say of targets."""

from __future__ import annotations

from dataloader.app.config import Settings
from dataloader.app.features.targets.servers import TargetServers
from dataloader.workers.reports.secrets import SecretStore


def options_from(settings: Settings, _secret_store: SecretStore) -> TargetServers:
    _, targets, _ = settings.pipeline_connections()
    queue_dsn = settings.worker_dsn or settings.dsn  # as workers connect to it
    return TargetServers(targets, queue_dsn=None if queue_dsn is None else queue_dsn.get_secret_value())
