"""`anabranch serve controller` that kills itself with -9 at a point of a split or merge, or of a creation.

Run as `python -m tests.controller.operations.dying_controller POINT ARGUMENTS…` with the arguments of `anabranch`; the
points are those of `crash_points`.
"""

from __future__ import annotations

import os
import signal
import sys

from anabranch.cli.main import main
from tests.controller.operations.crash_points import arm


def die() -> None:
    """No clean-up of any kind."""
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    arm(sys.argv.pop(1), die)
    main()
