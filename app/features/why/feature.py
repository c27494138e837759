from dataloader.app.acts.feature import Feature

FEATURE = Feature(
    name="why",
    has_commands=True,
    blueprints=("routes.create_why_blueprint",),
    explainer="explain.JobExplainer",
)
