"""`anabranch serve stream` for spark-submit: the same job, settings, options and exit codes (docs/deploy.md).

spark-submit … deploy/stream.py [--config FILE] [--home FOLDER] [--log-level LEVEL] [--new-checkpoint]
"""

import sys

from anabranch.cli.main import main

# The option of the command itself stands behind its name.
own = [option for option in sys.argv[1:] if option == "--new-checkpoint"]
sys.argv = ["anabranch", *(option for option in sys.argv[1:] if option not in own), "serve", "stream", *own]
main()
