from dataloader.app.acts.feature import Feature

FEATURE = Feature(
    name="where",
    has_commands=True,
    blueprints=("routes.create_where_blueprint",),
    threads="answerer.create_where_thread",
)
