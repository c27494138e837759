from dataloader.app.acts.feature import Feature

FEATURE = Feature(
    name="offload",
    duties="duty.create_duties",
    task_calls={"offload": "task_calls.make_calls"},
    reasons="reasons.OffloadReasons",
)
