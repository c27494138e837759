from dataloader.app.acts.feature import Feature, NavLink

FEATURE = Feature(
    name="queues",
    has_commands=True,
    blueprints=(
        "routes.create_queues_blueprint",
        "pages.create_queues_page",
    ),
    navigation=(NavLink("Capacity", "Queues", "/queues"),),
    problems="problems.queue_problems",
    subjects={"queue": "/queues/{}"},
)
