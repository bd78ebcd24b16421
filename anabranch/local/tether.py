"""Runs a command that must not outlive its parent: `python tether.py PARENT COMMAND…`.

On Linux the kernel sends the command SIGTERM when the parent dies, however it dies; the setting survives the exec.
Elsewhere the command just runs. It is a program of its own, because code between fork and exec is unsafe in a process
with threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(sys.argv[1]):
            sys.exit("the parent is gone already")
    os.execvp(sys.argv[2], sys.argv[2:])
