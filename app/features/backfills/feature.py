from dataloader.app.acts.feature import Feature, NavLink

FEATURE = Feature(
    name="backfills",
    has_commands=True,
    blueprints=(
        "routes.create_backfills_blueprint",
        "pages.create_backfills_page",
        "slices_page.create_slices_page",
    ),
    navigation=(NavLink("Work", "Backfills", "/backfills"),),
    duties="duty.create_duties",
    reasons="reasons.BackfillReasons",
    task_parts="slices_page.slices_of_task",
)
