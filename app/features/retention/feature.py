from dataloader.app.acts.feature import Feature

FEATURE = Feature(
    name="retention",
    duties="duty.create_duties",
    options="options.options_from",
    checks="checks.check_retention",
)
