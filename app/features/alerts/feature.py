from dataloader.app.acts.feature import Feature, NavLink

FEATURE = Feature(
    name="alerts",
    has_commands=True,
    blueprints=(
        "routes.create_alerts_blueprint",
        "pages.create_alerts_page",
    ),
    navigation=(NavLink("Watch", "Alerts", "/alerts"),),
    duties="duty.create_duties",
    metrics="metrics.alert_metrics",
)
