"""What the settings say of webhooks."""

from __future__ import annotations

from dataloader._distribution import version
from dataloader.app.config import Settings
from dataloader.app.config.smtp import parse_smtp_url
from dataloader.app.features.webhooks.messages import Origin
from dataloader.app.features.webhooks.sender import WebhookOptions
from dataloader.app.net import AllowedHosts
from dataloader.workers.reports.secrets import SecretStore


def options_from(settings: Settings, _secret_store: SecretStore) -> WebhookOptions:
    return WebhookOptions(
        allowed_hosts=AllowedHosts.parse(settings.webhook_allowed_hosts),
        secret=None if settings.webhook_secret is None else settings.webhook_secret.get_secret_value(),
        smtp=None if settings.smtp_url is None else parse_smtp_url(settings.smtp_url.get_secret_value()),
        origin=Origin(settings.environment, settings.public_url, settings.timezone),
        version=version(),
    )
