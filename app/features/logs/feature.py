from dataloader.app.acts.feature import Feature, NavLink

FEATURE = Feature(
    name="logs",
    has_commands=True,
    blueprints=("routes.create_logs_blueprint", "pages.create_logs_page"),
    navigation=(NavLink("Work", "Logs", "/logs"),),
)
