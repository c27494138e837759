from dataloader.app.acts.feature import Feature, NavCount, NavLink

FEATURE = Feature(
    name="failures",
    blueprints=(
        "routes.create_failures_blueprint",
        "pages.create_failures_page",
    ),
    navigation=(
        NavLink(
            "Work",
            "Failures",
            "/failures",
            NavCount(read="problems.count_of_last_hour", noun="new failure", is_bad=True),
        ),
    ),
    declare="declare.declare",
    problems="problems.failure_problems",
)
