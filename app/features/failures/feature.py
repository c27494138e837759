from dataloader.app.acts.feature import Feature, NavLink

FEATURE = Feature(
    name="failures",
    blueprints=(
        "routes.create_failures_blueprint",
        "pages.create_failures_page",
    ),
    navigation=(NavLink("Work", "Failures", "/failures"),),
    declare="declare.declare",
    problems="problems.failure_problems",
)
