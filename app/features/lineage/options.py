"""What the settings say of lineage."""

from __future__ import annotations

from functools import partial

from dataloader._distribution import version
from dataloader.app.config import Settings
from dataloader.app.features.lineage.duty import LineageOptions
from dataloader.workers.reports.secrets import SecretStore


def options_from(settings: Settings, secret_store: SecretStore) -> LineageOptions | None:
    match settings.lineage:
        case None:
            return None
        case str(url):
            return LineageOptions(url=url, version=version())
        case receiver:
            read_key = partial(secret_store.read, receiver["key"]["$secret"])
            return LineageOptions(url=receiver["url"], read_key=read_key, version=version())
