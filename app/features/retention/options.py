"""What the settings say of retention."""

from __future__ import annotations

from dataloader.app.config import Settings
from dataloader.workers.reports.secrets import SecretStore


def options_from(settings: Settings, _secret_store: SecretStore) -> bool:
    """Whether they decide if workers delete old jobs."""
    return settings.is_retention_decided
