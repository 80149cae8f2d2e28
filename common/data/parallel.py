"""Work on pieces of a text by several processes; the results come in the pieces' order."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

AHEAD = 2  # pieces held in memory for each process
Pieces = Iterable[tuple[str, Any]]
Worked = Iterator[tuple[Any, Any]]


@contextmanager
def processes(count: int) -> Iterator[Callable[[Callable[[str], Any], Pieces], Worked]]:
    """Yield `work_on(work, pieces)`, which yields (work(text), what) for each piece (text, what).

    `work` is called in `count` other processes, which are started when they are needed and end with
    this one, or here if `count` is less than two. Pieces are read as they are worked on.
    """
    if count < 2:
        yield lambda work, pieces: ((work(text), what) for text, what in pieces)
        return
    context = multiprocessing.get_context("spawn")  # the tokenizer's threads do not survive a fork
    with ProcessPoolExecutor(count, context, start_worker) as pool:

        def work_on(work, pieces):
            waiting = deque()
            for text, what in pieces:
                waiting.append((pool.submit(work, text), what))
                if len(waiting) == AHEAD * count:
                    first, its = waiting.popleft()
                    yield first.result(), its
            yield from ((each.result(), what) for each, what in waiting)

        yield work_on


def start_worker():
    """Leave Ctrl-C to the process that started this one, and end when that one does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent():
    """Wait for the end of the process that started this one, however it ends."""
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os._exit(1)
