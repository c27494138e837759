from dataloader.app.acts.feature import Feature, NavLink

FEATURE = Feature(
    name="settings",
    blueprints=("pages.create_settings_page",),
    navigation=(
        NavLink("Settings", "Settings", "/settings"),
        NavLink("Settings", "API", "/docs"),
    ),
)
