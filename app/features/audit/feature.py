from dataloader.app.acts.feature import Feature, NavLink

FEATURE = Feature(
    name="audit",
    has_commands=True,
    blueprints=(
        "routes.create_audit_blueprint",
        "pages.create_audit_page",
    ),
    navigation=(NavLink("Watch", "Audit", "/audit"),),
)
