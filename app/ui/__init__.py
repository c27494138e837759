"""The frame of the dashboard: page renderer, macros, formatter, static files. The pages are in `app/features`.

All pages work without scripts: links are links and actions are forms. With scripts, the live part of a page refreshes
every two seconds unless the user works in it.
"""
