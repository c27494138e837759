from dataloader.app.acts.feature import Feature

FEATURE = Feature(
    name="doctor",
    has_commands=True,
    problems="problems.doctor_problems",
)
