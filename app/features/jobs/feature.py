from dataloader.app.acts.feature import Feature, NavCount, NavLink

FEATURE = Feature(
    name="jobs",
    has_commands=True,
    blueprints=(
        "batch_routes.create_batch_blueprint",
        "list_routes.create_job_list_blueprint",
        "event_routes.create_events_blueprint",
        "log_routes.create_job_logs_blueprint",
        "progress_routes.create_progress_blueprint",
        "jobs_page.create_jobs_page",
        "job_page.create_job_page",
        "job_page.create_job_forms",
        "job_page.create_log_page",
    ),
    navigation=(NavLink("Work", "Jobs", "/jobs", NavCount(read="problems.count_running_jobs", noun="running job")),),
    problems="problems.job_problems",
    subjects={"job": "/jobs/{}"},
    search="jobs_page.find_jobs",
)
