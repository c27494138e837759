from dataloader.app.acts.feature import Feature

FEATURE = Feature(
    name="search",
    blueprints=("pages.create_search_page",),
)
