"""Runs a task's main, from the command line to the exit code; every failure ends in one line."""

import os
import signal
import sys
import traceback

from common.errors import EndedEarlyError, RunError, UserError
from common.files import disk_full

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def run(main, script, flags=()):
    """Parse the flags, join the other workers, call `main(args, world)`, and exit.

    Exits 0 only if the whole run succeeded, 75 (EX_TEMPFAIL) if it was asked to end early, 2 after
    a user error, 130 after Ctrl-C and 1 after anything else. A worker that fails reports it to the
    others, which then name it.
    """
    args, world, code = None, None, 1
    try:
        from common import cli  # here, as these imports take seconds: Ctrl-C may come first
        from common.workers import world as workers

        args = cli.parse_args(script, flags)
        world = workers.join(args)
        whole = runs_to_its_end(main, args, world)
        workers.leave(world)
        if not whole:
            sys.exit(os.EX_TEMPFAIL)
        return
    except UserError as error:
        code, reason = 2, str(error)
        print(f"{os.path.basename(script)}: {reason}", file=sys.stderr)
    except KeyboardInterrupt:
        code, reason = 130, "interrupted (Ctrl-C)"
        print(reason, file=sys.stderr)
    except Exception as error:
        from common.workers.stacks import stack_of
        from common.workers.verdict import is_loss_of_peer

        explained = explain(error, args.output_dir if args else ".")
        reason = explained or traceback.format_exception_only(error)[-1].strip()
        if explained:
            below_progress_bar = "\n" if world and world.rank == 0 else ""
            print(f"{below_progress_bar}{explained}", file=sys.stderr)
        elif not is_loss_of_peer(error):
            traceback.print_exc()
        elif world:
            world.heartbeat.give_up(stack_of(error))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ignore further Ctrl-C while telling the others
    if world:
        world.heartbeat.fail(reason)
    if "common.workers.meeting_file" in sys.modules:
        sys.modules["common.workers.meeting_file"].remove()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a broken process group may hang or abort in its destructors


def runs_to_its_end(main, args, world):
    """Call main; returns False if it was asked to end early, which rank 0 reports."""
    try:
        main(args, world)
    except EndedEarlyError as error:
        if world.rank == 0:
            print(error, file=sys.stderr)
        return False
    return True


def explain(error, folder):
    """The one line of an error that needs no traceback; "" for others."""
    if isinstance(error, RunError):
        return str(error)
    return unfinished(error) or disk_full(error, folder)


def unfinished(error):
    """Where a run reached a TODO, and what it asks for; "" if `error` is not a TODO's."""
    if not (isinstance(error, NotImplementedError) and str(error).startswith("TODO(")):
        return ""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.relpath(frame.filename, ROOT)}:{frame.lineno}"
    there = "" if "; write it in " in str(error) else " (write it there, in place of the `raise`)"
    return f"{place}: {error}{there}"
