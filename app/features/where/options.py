"""The targets of the settings, whose sessions are read."""

from __future__ import annotations

from dataloader.app.config import Settings
from dataloader.app.features.targets import options
from dataloader.app.features.targets.servers import TargetServers
from dataloader.workers.reports.secrets import SecretStore


def options_from(settings: Settings, secret_store: SecretStore) -> TargetServers:
    """Apart from those of the feature `targets`: each is asked at its own times."""
    return options.options_from(settings, secret_store)
