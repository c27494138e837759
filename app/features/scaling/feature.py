from dataloader.app.acts.feature import Feature

FEATURE = Feature(
    name="scaling",
    has_commands=True,
    blueprints=("routes.create_scaling_blueprint",),
    collectors=("routes.create_scaling_collector",),
)
