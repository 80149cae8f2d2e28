"""The lab's first process: the kernel withholds from it all signals that it has no handler for."""

import signal
import sys


def main() -> int:
    """Run cluster.lab; its imports take seconds, and a signal that comes meanwhile ends them."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        from cluster import lab

        return lab.main()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
