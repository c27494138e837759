from dataloader.app.acts.feature import Feature

FEATURE = Feature(
    name="retention",
    duties="duty.create_duties",
)
