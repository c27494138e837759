from dataloader.app.acts.feature import Feature, NavCount, NavLink

FEATURE = Feature(
    name="workers",
    has_commands=True,
    blueprints=("pages.create_workers_page",),
    navigation=(NavLink("Capacity", "Workers", "/workers", NavCount(read="problems.count_live", noun="live worker")),),
    problems="problems.worker_problems",
    subjects={"worker": "/workers"},
)
