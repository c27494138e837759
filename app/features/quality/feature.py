from dataloader.app.acts.feature import Feature, NavLink

FEATURE = Feature(
    name="quality",
    has_commands=True,
    blueprints=(
        "routes.create_data_quality_blueprint",
        "pages.create_datasets_page",
    ),
    navigation=(NavLink("Definitions", "Datasets", "/datasets"),),
    converters={"dataset": "routes.DatasetConverter"},
    duties="duty.create_duties",
    task_calls={"check_history": "task_calls.check_history"},
    subjects={"dataset": "/datasets/{}"},
    search="pages.find_datasets",
    task_parts="pages.checks_of_task",
)
