"""Three dashboards for Grafana as data: panels with their queries.

`deploy.generate` writes them as JSON.

A test looks every metric of a query up among those that the processes export.
"""

from typing import Any, NamedTuple


class Panel(NamedTuple):
    """A graph: title, unit of Grafana, and queries with their legends."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]


class Dashboard(NamedTuple):
    """A page of panels, two a row."""

    name: str
    title: str
    panels: tuple[Panel, ...]


_SUPPRESSED = "pulsar_scalable_topic_split_suppressed_max_segments_total"
"""A topic's series begins with its first hold, at 1: `increase` alone does not see it."""

FLEET = Dashboard(
    "fleet",
    "Anabranch: fleet",
    (
        Panel(
            "Decisions a minute, by action",
            "opm",
            (("sum by (action) (rate(anabranch_stream_decisions_total[5m])) * 60", "{{action}}"),),
        ),
        Panel(
            "Outcomes a minute",
            "opm",
            (("sum by (status) (rate(anabranch_stream_outcomes_total[5m])) * 60", "{{status}}"),),
        ),
        Panel(
            "Holds that began, by gate",
            "opm",
            (("topk(10, sum by (gate) (rate(anabranch_stream_holds_total[15m])) * 60)", "{{gate}}"),),
        ),
        Panel(
            "Active segments",
            "short",
            (
                ("sum(pulsar_scalable_topic_active_segments)", "all topics"),
                ("topk(5, pulsar_scalable_topic_active_segments)", "{{topic}}"),
            ),
        ),
        Panel(
            "Topics that want more segments than they may have",
            "short",
            (
                (
                    f"topk(10, increase({_SUPPRESSED}[1h]) > 0 or {_SUPPRESSED} unless {_SUPPRESSED} offset 1h)",
                    "{{topic}}",
                ),
            ),
        ),
        Panel(
            "Open and waiting decisions",
            "short",
            (
                ("sum(anabranch_executor_open_decisions)", "open"),
                ("sum by (brake) (anabranch_executor_waiting_decisions)", "held by {{brake}}"),
            ),
        ),
    ),
)
HEALTH = Dashboard(
    "health",
    "Anabranch: health",
    (
        Panel(
            "Processes that are not ready",
            "short",
            (
                ("min by (part) (anabranch_ready)", "{{part}} ready"),
                ("min by (part) (anabranch_live)", "{{part}} live"),
            ),
        ),
        Panel("Unread records", "short", (("anabranch_stream_lag_records", "{{source}}"),)),
        Panel(
            "Batch, 90th percentile by stage",
            "s",
            (
                (
                    "histogram_quantile(0.9, sum by (le, stage) (rate(anabranch_stream_batch_seconds_bucket[5m])))",
                    "{{stage}}",
                ),
            ),
        ),
        Panel(
            "Delay of evaluations",
            "s",
            (
                ("anabranch_stream_tick_lag_seconds", "tick to evaluation"),
                ("anabranch_stream_missed_ticks * anabranch_stream_tick_interval_seconds", "silence"),
            ),
        ),
        Panel(
            "Shards, and executors that are stopped",
            "short",
            (
                ("sum(anabranch_executor_shards)", "shards held"),
                ("sum(anabranch_executor_recent_failures)", "recent failures"),
            ),
        ),
        Panel(
            "Calls of the cluster a minute", "opm", (("sum(rate(anabranch_executor_calls_total[5m])) * 60", "calls"),)
        ),
        Panel(
            "Messages that were refused",
            "opm",
            (("sum by (reason) (rate(anabranch_stream_dead_letters_total[5m])) * 60", "{{reason}}"),),
        ),
        Panel("Files of the lake's tables", "short", (("max by (table) (anabranch_lake_files)", "{{table}}"),)),
        Panel("Memory", "bytes", (("sum by (job, instance) (process_resident_memory_bytes)", "{{job}} {{instance}}"),)),
        Panel(
            "Processors",
            "short",
            (("sum by (job, instance) (rate(process_cpu_seconds_total[5m]))", "{{job}} {{instance}}"),),
        ),
    ),
)
COLLECTORS = Dashboard(
    "collectors",
    "Anabranch: collectors",
    (
        Panel("Brokers whose load is read", "short", (("anabranch_collect_broker_up", "{{broker}}"),)),
        Panel("Age of a broker's load", "s", (("anabranch_collect_load_age_seconds", "{{broker}}"),)),
        Panel("Delay of rates", "s", (("anabranch_collect_lag_seconds", "{{broker}}"),)),
        Panel("Time of a broker's answer", "s", (("anabranch_collect_answer_seconds", "{{broker}}"),)),
    ),
)
DASHBOARDS = (FLEET, HEALTH, COLLECTORS)


def dashboard(page: Dashboard) -> dict[str, Any]:
    """Return a dashboard in Grafana's JSON model."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "uid": f"anabranch-{page.name}",
        "title": page.title,
        "tags": ["anabranch"],
        "schemaVersion": 39,
        "timezone": "utc",
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}]
        },
        "panels": [
            {
                "id": number + 1,
                "title": panel.title,
                "type": "timeseries",
                "datasource": source,
                "gridPos": {"x": number % 2 * 12, "y": number // 2 * 8, "w": 12, "h": 8},
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "targets": [
                    {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend, "datasource": source}
                    for index, (query, legend) in enumerate(panel.queries)
                ],
            }
            for number, panel in enumerate(page.panels)
        ],
    }
