from dataloader.app.acts.feature import Feature, NavLink

FEATURE = Feature(
    name="workers",
    blueprints=("pages.create_workers_page",),
    navigation=(NavLink("Capacity", "Workers", "/workers"),),
)
