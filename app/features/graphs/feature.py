from dataloader.app.acts.feature import Feature, NavLink

FEATURE = Feature(
    name="graphs",
    has_commands=True,
    blueprints=(
        "routes.create_graphs_blueprint",
        "pages.create_graph_page",
    ),
    navigation=(NavLink("Work", "Graphs", "/graphs"),),
    duties="duty.create_duties",
    task_calls={"upstream": "task_calls.read_parents", "enqueue_group": "task_calls.enqueue_group"},
    reasons="reasons.GraphReasons",
)
