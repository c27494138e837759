"""What the settings say of webhooks."""

from __future__ import annotations

from dataloader._distribution import version
from dataloader.app.config import Settings
from dataloader.app.features.webhooks.sender import WebhookOptions
from dataloader.app.net import AllowedHosts
from dataloader.workers.reports.secrets import SecretStore


def options_from(settings: Settings, _secret_store: SecretStore) -> WebhookOptions:
    return WebhookOptions(
        allowed_hosts=AllowedHosts.parse(settings.webhook_allowed_hosts),
        secret=None if settings.webhook_secret is None else settings.webhook_secret.get_secret_value(),
        version=version(),
    )
