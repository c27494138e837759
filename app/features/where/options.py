"""What the settings say of the sampler, and the targets whose sessions are read."""

from __future__ import annotations

from dataloader.app.config import Settings
from dataloader.app.features.targets import options
from dataloader.app.features.where.sampler_options import Prices, SamplerOptions, WhereOptions
from dataloader.workers.reports.secrets import SecretStore


def options_from(settings: Settings, secret_store: SecretStore) -> WhereOptions:
    """The servers are apart from those of the feature `targets`: each is asked at its own times."""
    sampler = SamplerOptions(
        after_sec=settings.sampler_after_sec,
        interval_sec=settings.sampler_interval_sec,
        prices=None if settings.prices is None else Prices(**settings.prices),  # type: ignore[arg-type]  # checked
    )
    return WhereOptions(options.options_from(settings, secret_store), sampler)
