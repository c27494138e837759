from dataloader.app.acts.feature import Feature, NavLink

FEATURE = Feature(
    name="webhooks",
    has_commands=True,
    blueprints=(
        "routes.create_webhooks_blueprint",
        "pages.create_webhooks_page",
    ),
    navigation=(NavLink("Settings", "Webhooks", "/webhooks"),),
    subjects={"webhook": "/webhooks/{}", "delivery": "/deliveries/{}"},
    duties="duty.create_duties",
    threads="sender.create_sender",
    options="options.options_from",
    metrics="metrics.webhook_metrics",
    checks="checks.check_webhooks",
)
