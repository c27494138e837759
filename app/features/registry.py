"""All features. A line left out of NAMES leaves the feature out of the service; the queue works without any."""

from __future__ import annotations

from importlib import import_module

from dataloader.app.acts.feature import Feature

# Their folders, in the order of the navigation.
NAMES = (
    "overview",
    "jobs",
    "why",
    "where",
    "failures",
    "logs",
    "runs",
    "graphs",
    "backfills",
    "tasks",
    "schedules",
    "quality",
    "queues",
    "workers",
    "limits",
    "alerts",
    "statistics",
    "audit",
    "webhooks",
    "keys",
    "settings",
    "bulk",
    "search",
    "undo",
    "scaling",
    "metrics",
    "offload",
    "lineage",
    "retention",
    "horizon",
    "targets",
    "doctor",
    "deploys",
    "demo",
)
FEATURES: tuple[Feature, ...] = tuple(import_module(f"{__package__}.{name}.feature").FEATURE for name in NAMES)
