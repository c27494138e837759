from dataloader.app.acts.feature import Feature

FEATURE = Feature(
    name="undo",
    blueprints=("pages.create_undo_page",),
    page_values="pages.page_values",
)
