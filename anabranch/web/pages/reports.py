"""`/reports`: HTML reports of `shadow`, `backtest`, `suggest` and `simulate`, each a mailable file.

They hold a plotting script of their own. So they are opened in a sandbox: without this page's origin, its cookies
or the network.
"""

from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from anabranch.web.asking import PageNotFound
from anabranch.web.guard import demand
from anabranch.web.templating import render

POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; frame-ancestors 'none'"
)
MAX_FILES = 500


class ReportFile(NamedTuple):
    """A file with a report."""

    name: str
    at: datetime
    kilobytes: int


def show(request: Request) -> Response:
    """The reports, the newest first."""
    demand(request, "read")
    folder: Path = request.app.state.reports
    return render(request, "reports.html", reports=reports_in(folder), folder=folder)


def read(request: Request) -> Response:
    """One of them, as it is."""
    demand(request, "read")
    folder: Path = request.app.state.reports
    name = request.query_params.get("name", "")
    # By the list: no name leads out of the folder.
    if name not in {report.name for report in reports_in(folder)}:
        raise PageNotFound("there is no such report")
    return FileResponse(folder / name, media_type="text/html", headers={"Content-Security-Policy": POLICY})


def reports_in(folder: Path) -> list[ReportFile]:
    """The files of a folder; none where there is no folder."""
    try:
        files = [
            file for file in folder.iterdir() if file.suffix == ".html" and file.is_file() and not file.is_symlink()
        ]
        reports = [
            ReportFile(
                file.name, datetime.fromtimestamp(file.stat().st_mtime, timezone.utc), file.stat().st_size // 1000
            )
            for file in files
        ]
    except OSError:
        return []
    return sorted(reports, key=lambda report: report.at, reverse=True)[:MAX_FILES]
