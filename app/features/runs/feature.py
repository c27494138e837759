from dataloader.app.acts.feature import Feature, NavLink

FEATURE = Feature(
    name="runs",
    blueprints=(
        "routes.create_runs_blueprint",
        "pages.create_runs_page",
    ),
    navigation=(NavLink("Work", "Runs by day", "/runs"),),
)
