from dataloader.app.acts.feature import Feature

FEATURE = Feature(
    name="lineage",
    duties="duty.create_duties",
    options="options.options_from",
)
