"""What the settings say of targets."""

from __future__ import annotations

from dataloader.app.config import Settings
from dataloader.app.state.target_servers import TargetServers
from dataloader.workers.reports.secrets import SecretStore


def options_from(settings: Settings, _secret_store: SecretStore) -> TargetServers:
    return TargetServers.from_settings(settings)
