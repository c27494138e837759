from dataloader.app.acts.feature import Feature, NavCount, NavLink

FEATURE = Feature(
    name="limits",
    has_commands=True,
    blueprints=(
        "routes.create_limits_blueprint",
        "routes.create_breakers_blueprint",
        "pages.create_limits_page",
    ),
    navigation=(
        NavLink("Capacity", "Limits", "/limits", NavCount(read="problems.count_limited_jobs", noun="limited job")),
    ),
    duties="duty.create_duties",
    declare="declare.declare",
    task_calls={"count_calls": "task_calls.count_calls"},
    reasons="reasons.LimitReasons",
    metrics="metrics.limit_metrics",
    problems="problems.breaker_problems",
    subjects={"limit": "/limits#limit-{}", "breaker": "/tasks/{}"},
    search="pages.find_limits",
)
