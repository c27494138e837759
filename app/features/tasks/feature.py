from dataloader.app.acts.feature import Feature, NavLink

FEATURE = Feature(
    name="tasks",
    has_commands=True,
    blueprints=(
        "routes.create_task_stats_blueprint",
        "pages.create_tasks_page",
    ),
    navigation=(NavLink("Definitions", "Tasks", "/tasks"),),
    subjects={"task": "/tasks/{}"},
    search="pages.find_tasks",
)
