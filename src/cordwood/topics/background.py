"""Compaction by itself: one thread for each topic of a process, when extents are closed."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from weakref import WeakSet

from cordwood.base.errors import CordwoodError
from cordwood.base.forks import starts_over

Work = Callable[[threading.Event], object]
"""What is to be done; it ends soon after the event is set."""


class Background:
    """The work that waits for a topic, and the thread that does it, as long as there is some."""

    def __init__(self, name: str) -> None:
        """Nothing to do."""
        self._name = name
        self.start_over()
        starts_over(self)
        _all_backgrounds.add(self)

    def start_over(self) -> None:
        """Nothing to do."""
        self._mutex = threading.Lock()
        self._waiting: dict[int, Work] = {}
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self.troubles: dict[int, str] = {}
        """What failed last, by partition."""

    def offer(self, partition: int, work: Work) -> None:
        """Do this for a partition, soon; once, if it is offered again before that."""
        with self._mutex:
            self._waiting[partition] = work
            if self._thread is None or not self._thread.is_alive():
                self._stop.clear()
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Give up what waits, and end what is under way."""
        with self._mutex:
            thread, self._thread = self._thread, None
            self._waiting.clear()
            self._stop.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def wait(self) -> None:
        """Until everything is done."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._mutex:
                if not self._waiting:
                    self._thread = None
                    return
                partition = next(iter(self._waiting))
                work = self._waiting.pop(partition)
            try:
                work(self._stop)
                self.troubles.pop(partition, None)
            except CordwoodError as error:  # Told by `describe`: nobody waits for this.
                self.troubles[partition] = str(error)


_all_backgrounds: WeakSet[Background] = WeakSet()


@atexit.register
def _stop_all() -> None:
    """A program that ends does not wait for compactions, nor leave them running while it does."""
    for background in list(_all_backgrounds):
        background.stop()
