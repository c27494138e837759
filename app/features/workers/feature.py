from dataloader.app.acts.feature import Feature, NavLink

FEATURE = Feature(
    name="workers",
    has_commands=True,
    blueprints=("pages.create_workers_page",),
    navigation=(NavLink("Capacity", "Workers", "/workers"),),
    problems="problems.worker_problems",
    subjects={"worker": "/workers"},
)
