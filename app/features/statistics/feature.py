from dataloader.app.acts.feature import Feature, NavLink

FEATURE = Feature(
    name="statistics",
    has_commands=True,
    blueprints=("charts_page.create_charts_page",),
    navigation=(NavLink("Watch", "Charts", "/charts"),),
    duties="duty.create_duties",
)
