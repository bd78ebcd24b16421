"""The application: command line, executor, controller, collectors, page, alerts, history and what-if.

The allocator inside of delta-rs (jemalloc) is told to keep one arena, and what is free for a second: as it is built, it
has eight and gives little of them back, and a process that commits for hours grows (51 MB from its 10th to its 750th
commit, 26 MB with these; two cores, one run each). It reads its settings when it is loaded, so this stands before
everything else. So does what hides packages that libraries would load in each process.
"""

import os
import sys

from runtime.hidden_packages import HiddenPackages

os.environ.setdefault("_RJEM_MALLOC_CONF", "narenas:1,dirty_decay_ms:1000,muzzy_decay_ms:0")

sys.meta_path.insert(0, HiddenPackages({"pandas", "trio", "httpx._main"}, unless="pyspark"))
