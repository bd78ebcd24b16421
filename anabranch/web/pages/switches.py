"""`/switches`: switches of a broker cluster to another BookKeeper cluster, as timelines of phases."""

from deltalake.exceptions import DeltaError
from starlette.requests import Request
from starlette.responses import Response

from anabranch.history.switches import FailedLedger, SwitchHistory, switches
from anabranch.query.sql import SqlError
from anabranch.web.asking import PageNotFound, turn
from anabranch.web.guard import demand
from anabranch.web.templating import render
from decisions.bookkeeper.gates import ledger_advice

MAX_SWITCHES, MAX_FAILURES = 20, 100


def show(request: Request) -> Response:
    """The newest switches on record."""
    demand(request, "read")
    histories, problem = list[SwitchHistory](), None
    try:
        with turn():
            histories = switches(request.app.state.lake)
    except PageNotFound as error:
        problem = str(error)
    except (SqlError, DeltaError, OSError) as error:
        problem = f"the lake cannot be read now: {str(error).partition(chr(10))[0]}"
    return render(
        request,
        "switches.html",
        problem=problem,
        found=histories[:MAX_SWITCHES],
        more=len(histories) - MAX_SWITCHES,
        advised=_advised,
        most=MAX_FAILURES,
    )


def _advised(switch: SwitchHistory, failure: FailedLedger) -> str:
    return ledger_advice(failure.ledger, failure.reason, switch.source, switch.target)
