"""Run `formerlab` in processes that send themselves a signal at a chosen call, or that have a limited file size.

test_killed.py starts this script. The script reads one JSON order per line from stdin, and answers each order with one
JSON line on stdout. Every order runs in a fork of this process, which has only imported the package.
"""

import json
import os
import resource
import signal
import sys
import tempfile
import traceback

from formerlab.__main__ import main
from formerlab.training import stage  # noqa: F401


def fork(order):
    """Run the command of an order; return its exit status, its output and its number of calls."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as calls:
        pid = os.fork()
        if pid == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            run_and_exit(order, calls)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        output.seek(0)
        calls.seek(0)
        return {"status": status, "output": output.read().decode(), "calls": int(calls.read() or 0)}


def run_and_exit(order, calls):
    counted, code = 0, 1

    def at_every_call(frame, event, called):
        nonlocal counted
        if event not in ("call", "c_call"):
            return
        name = called.__name__ if event == "c_call" else frame.f_code.co_name
        if order["function"] in (None, name):
            counted += 1
            if counted == order["at_call"]:
                os.kill(os.getpid(), signal.Signals[order["signal"]])

    if order.get("largest_file") is not None:  # a write beyond the limit fails, as on a full disk
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["largest_file"],) * 2)
    if order["at_call"] is not None:
        sys.setprofile(at_every_call)
    try:
        code = main(order["command"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.setprofile(None)
        sys.stdout.flush()
        sys.stderr.flush()
        calls.write(str(counted).encode())
        calls.flush()
        os._exit(code)


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(fork(json.loads(line))), flush=True)
