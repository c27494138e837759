from dataloader.app.acts.feature import Feature, NavLink

FEATURE = Feature(
    name="keys",
    has_commands=True,
    blueprints=("pages.create_keys_page",),
    navigation=(NavLink("Settings", "API keys", "/keys"),),
)
