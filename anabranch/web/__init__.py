"""Web page for operators: the fleet, topics over time, decisions, processes and safeguards.

Stage: the read end for people, beside the command line and the terminal's screen. It reads the lake, and writes to it
what a person may: approvals, and brakes.

- `server`      the process
- `app`         the routes
- `pages`       a module for each page: what it shows
- `fleet`       the newest state of every topic, followed by version in a thread
- `past`        what the lake has of one topic in a window
- `drawing`     strips and rivers as SVG
- `asking`      questions to the lake, a few at a time
- `replays`     explanations, in a process of their own
- `guard`       who may see and do what
- `templating`  the templates, and what they may call
- `sessions`    signed-in browsers
- `processes`, `telemetry`   health and figures of the other processes
- `trend`, `curves`, `rows`, `words`   the fleet over time, columns for plots, values to search by, texts
"""
