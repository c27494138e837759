from dataloader.app.acts.feature import Feature

FEATURE = Feature(
    name="horizon",
    checks="checks.check_horizon",
    notes="notes.horizon_notes",
    metrics="metrics.horizon_metrics",
)
