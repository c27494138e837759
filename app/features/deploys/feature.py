from dataloader.app.acts.feature import Feature

FEATURE = Feature(name="deploys", has_commands=True)
