from dataloader.app.acts.feature import Feature

FEATURE = Feature(
    name="scaling",
    blueprints=("routes.create_scaling_blueprint",),
    collectors=("routes.create_scaling_collector",),
)
