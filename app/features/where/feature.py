from dataloader.app.acts.feature import Feature, JobPanel

FEATURE = Feature(
    name="where",
    has_commands=True,
    blueprints=(
        "routes.create_where_blueprint",
        "pages.create_where_page",
        "account_routes.create_account_blueprint",
        "account_pages.create_account_page",
    ),
    job_panels=(
        JobPanel("Where it is now", "where", ("running",)),
        JobPanel("Where the time went", "account", ("running", "succeeded", "failed", "canceled", "lost")),
    ),
    task_note="account_pages.make_task_note",
    charts="account_pages.make_charts",
    metrics="metrics.account_metrics",
    duties="duty.create_duties",
    reasons="reasons.WhereReasons",
    options="options.options_from",
    threads="answerer.create_where_thread",
)
