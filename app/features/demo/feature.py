from dataloader.app.acts.feature import Feature

FEATURE = Feature(name="demo", has_commands=True)
