from dataloader.app.acts.feature import Feature, JobPanel

FEATURE = Feature(
    name="where",
    has_commands=True,
    blueprints=("routes.create_where_blueprint", "pages.create_where_page"),
    job_panels=(JobPanel("Where it is now", "where", ("running",)),),
    reasons="reasons.WhereReasons",
    options="options.options_from",
    threads="answerer.create_where_thread",
)
