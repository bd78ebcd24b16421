"""`anabranch stream` for spark-submit: the same job, settings, options and exit codes (docs/cluster.md).

spark-submit … deploy/stream.py [--config FILE] [--home FOLDER] [--log-level LEVEL]
"""

import sys

from anabranch.cli import main

sys.argv = ["anabranch", *sys.argv[1:], "stream"]
main()
