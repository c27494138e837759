from dataloader.app.acts.feature import Feature, NavCount, NavLink

FEATURE = Feature(
    name="schedules",
    has_commands=True,
    blueprints=(
        "routes.create_schedules_blueprint",
        "pages.create_schedules_page",
        "calendar_page.create_calendar_page",
    ),
    navigation=(
        NavLink(
            "Definitions", "Schedules", "/schedules", NavCount(read="problems.count_stopped", noun="stopped schedule")
        ),
        NavLink("Definitions", "Calendar", "/calendar"),
    ),
    duties="duty.create_duties",
    declare="declare.declare",
    follower_duties="duty.create_follower_duties",
    test_clock="drain_clock.ScheduleClock",
    reasons="reasons.ScheduleReasons",
    problems="problems.schedule_problems",
    checks="checks.check_schedules",
    subjects={"schedule": "/schedules/{}"},
    search="pages.find_schedules",
    task_parts="pages.schedules_of_task",
)
