from dataloader.app.acts.feature import Feature, NavLink

FEATURE = Feature(
    name="overview",
    blueprints=("pages.create_overview_page",),
    navigation=(NavLink("Work", "Overview", "/"),),
    page_values="service_counts.page_values",
)
