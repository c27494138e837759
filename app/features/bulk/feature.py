from dataloader.app.acts.feature import Feature

FEATURE = Feature(
    name="bulk",
    blueprints=("routes.create_bulk_blueprint",),
    duties="duty.create_duties",
)
