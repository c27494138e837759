"""The dashboard: HTML pages that read the same classes of `app.admin` and `app.queue` as the API.

base.py      what all pages share: rendering, form actions, formatting of times and sizes
overview.py  problems and running jobs
jobs.py      list and search of jobs, bulk actions (state_counts.py: the counts of its tabs)
job.py       one job: status, attempts; cancel, retry, edit, clone, delete; its full log, with search
job_attempts.py, job_history.py, job_timeline.py  parts of it: its attempts, its events in words, its picture
tasks.py     what each task did and what is wrong with it, and a form that starts a job of it
start_form.py, args_form.py  that form, made from the schema of the task's args
run_chart.py the durations of a task's last runs
failures.py  failed and lost jobs, grouped by the fingerprint of the error
graph.py     jobs that wait for one another, by layer
queues.py    queues, and one queue with its jobs, workers, limits and settings (picture in queue_charts.py)
workers.py   worker processes, and what each runs
data_quality.py  datasets: last updates, who updates and reads them
backfills.py backfills: their progress, what runs and what failed
slices.py    the slices of a task by calendar, to load again or to cancel
schedules.py schedules: when they fire, and what became of each time
calendar.py  what schedules made and will make, by month and day
charts.py    statistics over time
alerts.py    what fires, alert rules, what was resolved
webhooks.py  webhooks and their deliveries
keys.py      API keys
settings.py  settings in force, the database, retention, findings of doctor
audit.py     the audit log
shell.py     the frame around every page: navigation, number of problems, zone
problems.py  what is wrong, by subject
service_counts.py  the number of problems in the header, and the counts of the navigation
undo.py      the message after an act, and its undo
search.py    the search of the header, and what the command palette offers
zone.py      the choice of the zone in which pages show times

All pages work without scripts: links are links and actions are forms. With scripts, the live part of a page refreshes
every two seconds unless the user works in it.
"""
