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
)
