from dataloader.app.acts.feature import Feature, NavLink

FEATURE = Feature(
    name="keys",
    has_commands=True,
    blueprints=("routes.create_keys_blueprint", "pages.create_keys_page"),
    subjects={"key": "/keys#key-{}"},
    navigation=(NavLink("Settings", "API keys", "/keys"),),
)
