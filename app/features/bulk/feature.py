from dataloader.app.acts.feature import Feature

FEATURE = Feature(
    name="bulk",
    has_commands=True,
    blueprints=("routes.create_bulk_blueprint",),
    subjects={"bulk": "/bulk/{}"},
    duties="duty.create_duties",
)
