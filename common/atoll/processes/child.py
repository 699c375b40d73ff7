"""Run a command that ends with its parent: ``python -I -S child.py PARENT_PID COMMAND...``.

This is a script rather than a ``preexec_fn`` because the parent runs gRPC threads, and code between fork and exec can
deadlock in such a process. The signal that prctl(2) sets with PR_SET_PDEATHSIG survives the exec.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Request SIGTERM at the parent's death, then exec the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the parent starts us with Ctrl-C held back
    if os.getppid() != parent:  # the parent died before prctl
        raise SystemExit(1)
    os.execv(command[0], command)  # noqa: S606  # no shell is involved


if __name__ == "__main__":
    main()
