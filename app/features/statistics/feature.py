from dataloader.app.acts.feature import Feature, NavLink

FEATURE = Feature(
    name="statistics",
    has_commands=True,
    blueprints=(
        "comparison_routes.create_comparison_blueprint",
        "charts_page.create_charts_page",
        "comparison_page.create_comparison_page",
    ),
    navigation=(NavLink("Watch", "Charts", "/charts"), NavLink("Watch", "Compare", "/compare")),
    duties="duty.create_duties",
)
