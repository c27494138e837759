"""All features. A line left out of FEATURES leaves the feature out of the service; the queue works without any."""

from __future__ import annotations

from dataloader.app.acts.feature import Feature
from dataloader.app.features.alerts import feature as alerts
from dataloader.app.features.audit import feature as audit
from dataloader.app.features.backfills import feature as backfills
from dataloader.app.features.bulk import feature as bulk
from dataloader.app.features.doctor import feature as doctor
from dataloader.app.features.failures import feature as failures
from dataloader.app.features.graphs import feature as graphs
from dataloader.app.features.jobs import feature as jobs
from dataloader.app.features.keys import feature as keys
from dataloader.app.features.limits import feature as limits
from dataloader.app.features.lineage import feature as lineage
from dataloader.app.features.metrics import feature as metrics
from dataloader.app.features.overview import feature as overview
from dataloader.app.features.quality import feature as quality
from dataloader.app.features.queues import feature as queues
from dataloader.app.features.retention import feature as retention
from dataloader.app.features.scaling import feature as scaling
from dataloader.app.features.schedules import feature as schedules
from dataloader.app.features.search import feature as search
from dataloader.app.features.settings import feature as settings
from dataloader.app.features.statistics import feature as statistics
from dataloader.app.features.tasks import feature as tasks
from dataloader.app.features.undo import feature as undo
from dataloader.app.features.webhooks import feature as webhooks
from dataloader.app.features.why import feature as why
from dataloader.app.features.workers import feature as workers

# In the order of the navigation.
FEATURES: tuple[Feature, ...] = (
    overview.FEATURE,
    jobs.FEATURE,
    why.FEATURE,
    failures.FEATURE,
    graphs.FEATURE,
    backfills.FEATURE,
    tasks.FEATURE,
    schedules.FEATURE,
    quality.FEATURE,
    queues.FEATURE,
    workers.FEATURE,
    limits.FEATURE,
    alerts.FEATURE,
    statistics.FEATURE,
    audit.FEATURE,
    webhooks.FEATURE,
    keys.FEATURE,
    settings.FEATURE,
    bulk.FEATURE,
    search.FEATURE,
    undo.FEATURE,
    scaling.FEATURE,
    metrics.FEATURE,
    lineage.FEATURE,
    retention.FEATURE,
    doctor.FEATURE,
)
