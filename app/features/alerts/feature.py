from dataloader.app.acts.feature import Feature, NavCount, NavLink

FEATURE = Feature(
    name="alerts",
    has_commands=True,
    blueprints=(
        "routes.create_alerts_blueprint",
        "pages.create_alerts_page",
    ),
    navigation=(
        NavLink("Watch", "Alerts", "/alerts", NavCount(read="problems.count_firing", noun="firing alert", is_bad=True)),
    ),
    subjects={"alert_rule": "/alerts?edit={0}#rule-{0}"},
    duties="duty.create_duties",
    checks="checks.check_alerts",
    problems="problems.alert_problems",
    metrics="metrics.alert_metrics",
)
