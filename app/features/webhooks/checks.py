"""The part of doctor: webhooks that are switched off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dataloader.app.acts.findings import Finding, warning
from dataloader.app.db.statements import Executor
from dataloader.app.features.webhooks.rows import Webhooks
from dataloader.app.wording import format_count


def check_webhooks(executor: Executor, _options: Any = None) -> Iterator[Finding]:
    webhooks = [webhook.webhook_id for webhook in Webhooks(executor).all() if webhook.disabled_at is not None]
    if webhooks:
        yield warning(
            "webhooks_disabled",
            f"disabled: {format_count(len(webhooks), 'webhook')}",
            "; ".join(f"dataloader webhooks edit {webhook} --on" for webhook in webhooks),
        )
