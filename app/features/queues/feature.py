from dataloader.app.acts.feature import Feature, NavCount, NavLink

FEATURE = Feature(
    name="queues",
    has_commands=True,
    blueprints=(
        "routes.create_queues_blueprint",
        "pages.create_queues_page",
    ),
    navigation=(NavLink("Capacity", "Queues", "/queues", NavCount(read="problems.count_paused", noun="paused queue")),),
    problems="problems.queue_problems",
    subjects={"queue": "/queues/{}"},
    search="pages.find_queues",
)
