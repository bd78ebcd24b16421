"""The driver of the job: session, sources, ticks, pace, metrics, watchdog and Python workers."""
