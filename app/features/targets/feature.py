from dataloader.app.acts.feature import Feature

FEATURE = Feature(
    name="targets",
    has_commands=True,
    blueprints=("routes.create_targets_blueprint",),
    duties="duty.create_duties",
    declare="declare.declare",
    options="options.options_from",
    checks="checks.check_targets",
    reasons="reasons.TargetReasons",
    task_calls={"draw_fence": "task_calls.draw_fence"},
)
