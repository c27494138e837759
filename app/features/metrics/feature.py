from dataloader.app.acts.feature import Feature

FEATURE = Feature(
    name="metrics",
    blueprints=("routes.create_metrics_blueprint",),
    collectors=("routes.create_queue_collector",),
)
