"""A real Prometheus and its promtool, from the Debian package, in the project's cache."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from anabranch.local.broker import free_ports
from anabranch.local.processes import tethered
from deploy.dashboards import DASHBOARDS
from deploy.generate import CHART
from tests.debian_packages import ensure_package
from tests.waiting import wait_until

METRIC = re.compile(r"\b(?:anabranch|process|pulsar)_[a-z_]+")
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "prometheus"


def ensure_prometheus() -> Path:
    """Return the folder with the programs `prometheus` and `promtool`."""
    return ensure_package("prometheus", CACHE) / "usr" / "bin"


class RealPrometheus:
    """One process on loopback that scrapes metrics ports every two seconds, each as a job."""

    def __init__(self, folder: Path, ports: Mapping[str, int]) -> None:
        self._folder, self._port = folder, free_ports(1)[0]
        folder.mkdir()
        jobs = [
            {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]} for job, port in ports.items()
        ]
        seconds = {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "2s"}
        configuration = {
            "global": seconds,
            "rule_files": [str(CHART / "files" / "prometheus-rules.json")],
            "scrape_configs": jobs,
        }
        # JSON is YAML.
        (folder / "prometheus.yml").write_text(json.dumps(configuration))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait for its first answer."""
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                tethered(
                    [
                        str(ensure_prometheus() / "prometheus"),
                        f"--config.file={self._folder / 'prometheus.yml'}",
                        f"--storage.tsdb.path={self._folder / 'data'}",
                        f"--web.listen-address=127.0.0.1:{self._port}",
                    ]
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
            )
        wait_until(self._answers, 60)

    def end(self) -> None:
        """End it, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def series(self, query: str) -> list[dict[str, Any]]:
        """Return the series that a query has now."""
        result: list[dict[str, Any]] = self._get("query", query=query)["result"]
        return result

    def rules(self) -> list[dict[str, Any]]:
        """Return the alert rules with their health and state."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def unanswered_queries(self) -> set[str]:
        """Return the queries of dashboards, and the metrics of alert rules, without a series now."""
        queries = {query for page in DASHBOARDS for panel in page.panels for query, _ in panel.queries}
        queries |= {name for rule in self.rules() for name in METRIC.findall(rule["query"])}
        return {query for query in queries if not self.series(query)}

    def _answers(self) -> bool:
        try:
            return self._get("query", query="1")["resultType"] == "scalar"
        except (URLError, OSError):
            return False

    def _get(self, path: str, **parameters: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urlencode(parameters)}"
        with urlopen(url, timeout=30) as answer:
            data: dict[str, Any] = json.load(answer)["data"]
        return data
