"""Which kernel is used when: nobody waits for the vector kernel, not even a forked child."""

from __future__ import annotations

import os
import sys
import threading
import types

import pytest
from setsum_reference import LONG_INPUT, requires_numba

import cordwood.base
from cordwood.base import kernels
from cordwood.base.errors import InvalidInputError, StateError
from cordwood.base.kernels import _Kernels
from cordwood.base.plain import sum_items as plain_sum

requires_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")

PATIENCE_S = 60
PLENTY = 2**40

FORKS = """
import os, signal, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # forking beside a thread is what is tested
kernels._LOAD_BLOCKS = 1
def fork(work, leave=sys.exit):
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)  # a child that waits for ever is killed, and that is its status
        leave(work())
    return pid
def status(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""

SLOW_LOADER = """
import logging, types
begun, may_end = threading.Event(), threading.Event()
def load():
    begun.set()
    may_end.wait()
    logging.getLogger("any")  # takes the lock that forks take as well
    return kernels.plain.sum_items
fake = types.ModuleType("cordwood.base.keccak")
fake.load = load
sys.modules[fake.__name__] = fake
expected = digest()
begun.wait()
"""


class Loader:
    """A stand-in for the module of the vector kernel, which loads when the test says so."""

    def __init__(self):
        self.made = object()
        self.failure = None
        self.threads = []
        self.begun = threading.Event()
        self.may_end = threading.Event()

    def load(self):
        """What `keccak.load` is to the code under test."""
        self.threads.append(threading.current_thread())
        self.begun.set()
        assert self.may_end.wait(PATIENCE_S)
        if self.failure is not None:
            raise self.failure
        return self.made


@pytest.fixture
def loader(monkeypatch):
    """The stand-in, in the place of the real module, whether or not numba is installed."""
    made = Loader()
    module = types.ModuleType("cordwood.base.keccak")
    module.load = made.load
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(cordwood.base, "keccak", module, raising=False)
    yield made
    made.may_end.set()
    for thread in background_threads():
        thread.join(PATIENCE_S)


def background_threads():
    """The threads that load, or wait to load, in this process."""
    return [thread for thread in threading.enumerate() if thread.name == "cordwood-kernel"]


class TestChoice:
    """The kernel that was asked for."""

    def test_use_kernel(self):
        """The choice made before is returned, and an unknown one changes nothing."""
        before = kernels.use_kernel("hashlib")
        chosen = "hashlib"
        assert chosen == kernels.kernel_name()
        with pytest.raises(InvalidInputError, match="quick"):
            kernels.use_kernel("quick")
        assert chosen == kernels.use_kernel(before)

    def test_without_numba(self, run_python):
        """Where numba is missing hashlib does the work, silently, and asking for numba fails."""
        code = (
            "import sys\nsys.modules['numba'] = sys.modules['llvmlite'] = None\n"
            f"{LONG_INPUT}\n"
            "kernels._LOAD_BLOCKS = 1\n"
            "first = digest()\n"
            "try:\n    kernels.use_kernel('numba')\n"
            "except errors.StateError as error:\n    failure = error\n"
            "print(kernels.kernel_name(), first == digest(), failure.code, failure.hint)\n"
        )
        expected = ["hashlib", "True", "state", "install", "cordwood[fast]"]
        assert expected == run_python(code)

    def test_hashlib_by_environment(self, run_python):
        """CORDWOOD_KERNEL=hashlib keeps numba out of the process."""
        code = (
            f"import sys, threading\n{LONG_INPUT}\n"
            "kernels._LOAD_BLOCKS = 1\ndigest()\n"
            "print(kernels.kernel_name(), threading.active_count(), 'numba' in sys.modules)\n"
        )
        expected = ["hashlib", "1", "False"]
        assert expected == run_python(code, CORDWOOD_KERNEL="hashlib")

    def test_numba_by_environment(self, run_python):
        """CORDWOOD_KERNEL=numba is a demand: without numba nothing is hashed."""
        code = (
            "import sys\nsys.modules['numba'] = None\n"
            f"{LONG_INPUT}\n"
            "try:\n    digest()\n"
            "except errors.StateError as error:\n    print(error.code)\n"
        )
        expected = ["state"]
        assert expected == run_python(code, CORDWOOD_KERNEL="numba")

    def test_nonsense_by_environment(self, run_python):
        """An unknown kernel in the environment is refused when something is to be hashed."""
        code = (
            f"{LONG_INPUT}\n"
            "try:\n    digest()\n"
            "except errors.InvalidInputError as error:\n    print('quick' in str(error))\n"
        )
        expected = ["True"]
        assert expected == run_python(code, CORDWOOD_KERNEL="quick")

    def test_a_demand_loads_at_once(self, loader):
        """Asking for numba by name, or for the kernel's name, loads in the thread that asks."""
        loader.may_end.set()
        for ask in (lambda made: made.choose("numba"), lambda made: made.load()):
            made = _Kernels("auto")
            ask(made)
            assert loader.made is made.pick(2, 2)
        here = threading.current_thread()
        assert [here, here] == loader.threads


class TestBackground:
    """In "auto" the vector kernel is loaded beside the work."""

    def test_it_is_loaded_when_it_pays(self, loader):
        """Small inputs use hashlib until they amount to what loading costs, and while it loads."""
        made = _Kernels("auto")
        half = kernels._LOAD_BLOCKS // 2
        assert plain_sum is made.pick(1, PLENTY)
        assert plain_sum is made.pick(10, half)
        assert [] == background_threads()
        for _ in range(5):
            assert plain_sum is made.pick(10, half)
        assert loader.begun.wait(PATIENCE_S)
        assert plain_sum is made.pick(10, PLENTY)
        (thread,) = loader.threads
        assert thread.daemon
        assert thread is not threading.current_thread()
        loader.may_end.set()
        thread.join(PATIENCE_S)
        assert loader.made is made.pick(2, 2)
        assert plain_sum is made.pick(1, PLENTY)
        assert [thread] == loader.threads

    def test_many_threads_start_one(self, loader):
        """However many threads reach the threshold at once, one thread loads."""
        made = _Kernels("auto")
        start = threading.Barrier(8)

        def work():
            start.wait()
            for _ in range(100):
                made.pick(100, PLENTY)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        one = 1
        assert one == len(background_threads())
        loader.may_end.set()
        assert loader.made is made.load()
        assert one == len(loader.threads)

    def test_asking_for_it_waits_for_the_thread(self, loader):
        """A load that is under way is waited for by who must know, not done a second time."""
        made = _Kernels("auto")
        made.pick(100, PLENTY)
        assert loader.begun.wait(PATIENCE_S)
        answers = []
        asking = threading.Thread(target=lambda: answers.append(made.load()))
        asking.start()
        assert [] == answers
        loader.may_end.set()
        asking.join(PATIENCE_S)
        assert [loader.made] == answers
        assert asking not in loader.threads

    @pytest.mark.usefixtures("loader")
    def test_hashing_goes_on_while_another_thread_loads(self):
        """Nobody waits for a kernel that is being loaded elsewhere."""
        made = _Kernels("auto")
        with made._loading:
            for _ in range(3):
                assert plain_sum is made.pick(100, PLENTY)

    def test_a_kernel_that_fails_to_load(self, loader):
        """Whatever goes wrong while loading, hashlib is used, and loading is not tried again."""
        loader.failure = OSError("no")
        loader.may_end.set()
        made = _Kernels("auto")
        made.pick(100, PLENTY)
        assert made.load() is None
        for _ in range(3):
            assert plain_sum is made.pick(100, PLENTY)
        with pytest.raises(StateError, match="cannot be loaded: no"):
            made.choose("numba")
        once = 1
        assert once == len(loader.threads)

    def test_no_thread_to_be_had(self, loader, monkeypatch):
        """Where no thread can be started hashlib is used; asking for the kernel still loads it."""
        attempts = []

        def refuse(thread):
            attempts.append(thread)
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        made = _Kernels("auto")
        for _ in range(3):
            assert plain_sum is made.pick(100, PLENTY)
        once = 1
        assert once == len(attempts)
        loader.may_end.set()
        assert loader.made is made.load()

    @requires_numba
    def test_the_sum_stays_the_same(self, run_python, tmp_path):
        """Before, while and after the real kernel is loaded the sums are equal."""
        code = (
            f"import threading, time\n{LONG_INPUT}\n"
            "kernels._LOAD_BLOCKS = 1\n"
            "sums = [digest()]\n"
            "(thread,) = [t for t in threading.enumerate() if t.name == 'cordwood-kernel']\n"
            "while thread.is_alive():\n    sums.append(digest())\n    time.sleep(0.001)\n"
            "print(kernels._KERNELS.pick(100, 1) is not kernels.plain.sum_items)\n"
            "print(all(s == sums[0] for s in [*sums, digest()]), len(sums) > 10)\n"
        )
        expected = ["True"] * 3
        assert expected == run_python(code, NUMBA_CACHE_DIR=str(tmp_path))


class TestForks:
    """A child does not wait for what only its parent has."""

    def test_in_the_midst_of_loading(self, loader, monkeypatch):
        """If loading did not end in time the child has hashlib, and says why if numba is asked."""
        monkeypatch.setattr(kernels, "_WAIT_S", 0.01)
        made = _Kernels("auto")
        made.pick(100, PLENTY)
        assert loader.begun.wait(PATIENCE_S)
        made._before_fork()
        made._after_fork_in_child()
        assert plain_sum is made.pick(100, PLENTY)
        assert made.load() is None
        with pytest.raises(StateError, match="forked while it was being loaded") as caught:
            made.choose("numba")
        assert "before forking" in caught.value.hint
        made.end()
        once = 1
        assert once == len(loader.threads)

    def test_before_loading(self, loader):
        """A child whose parent's thread had not begun to load starts a thread of its own."""
        made = _Kernels("auto")
        assert made._ticket.acquire(blocking=False)  # as if the thread had only just been started
        made._before_fork()
        made._after_fork_in_child()
        made.pick(100, PLENTY)
        assert loader.begun.wait(PATIENCE_S)
        loader.may_end.set()
        assert loader.made is made.load()

    def test_after_loading(self, loader):
        """What was loaded before the fork is there after it, whoever held the lock meanwhile."""
        loader.may_end.set()
        made = _Kernels("auto")
        made.load()
        with made._loading:
            made._after_fork_in_child()
            assert loader.made is made.pick(2, 2)
            assert loader.made is made.load()

    def test_the_parent_goes_on(self, loader, monkeypatch):
        """A fork, in time or not, leaves the parent as it was."""
        monkeypatch.setattr(kernels, "_WAIT_S", 0.01)
        made = _Kernels("auto")
        made._before_fork()
        made._after_fork_in_parent()
        assert not made._loading.locked()
        made.pick(100, PLENTY)
        assert loader.begun.wait(PATIENCE_S)
        made._before_fork()
        made._after_fork_in_parent()
        assert made._loading.locked()
        loader.may_end.set()
        assert loader.made is made.load()

    @requires_fork
    def test_a_child_of_a_loading_process(self, run_python):
        """A real child hashes, is told hashlib, and exits, while its parent is still loading."""
        code = (
            f"{LONG_INPUT}{FORKS}{SLOW_LOADER}\n"
            "kernels._WAIT_S = 0.2\n"
            "def work():\n"
            "    assert expected == digest()\n"
            "    assert 'hashlib' == kernels.kernel_name()\n"
            "    try:\n"
            "        kernels.use_kernel('numba')\n"
            "    except errors.StateError as error:\n"
            "        assert 'forked' in str(error)\n"
            "        return 7 + status(fork(lambda: expected != digest()))\n"
            "child = status(fork(work))\n"
            "loading = kernels._KERNELS._loading.locked()\n"
            "may_end.set()\n"
            "print(child, loading, kernels.kernel_name())\n"
        )
        expected = ["7", "True", "numba"]
        assert expected == run_python(code)

    @requires_fork
    def test_a_fork_waits_for_the_load(self, run_python):
        """A child is forked when the load has ended, also if two threads fork."""
        code = (
            f"{LONG_INPUT}{FORKS}{SLOW_LOADER}\n"
            "threading.Timer(0.3, may_end.set).start()\n"
            "def work():\n"
            "    return 8 if (kernels.kernel_name(), digest()) == ('numba', expected) else 9\n"
            "statuses = []\n"
            "def fork_too():\n"
            "    statuses.append(status(fork(work, os._exit)))\n"
            "thread = threading.Thread(target=fork_too)\n"
            "thread.start()\n"
            "fork_too()\n"
            "thread.join()\n"
            "print(*statuses, kernels._KERNELS._loading.locked())\n"
        )
        expected = ["8", "8", "False"]
        assert expected == run_python(code)

    @requires_fork
    @requires_numba
    @pytest.mark.parametrize("delay_s", [0, 0.1, 0.4, 0.8])
    def test_children_forked_at_any_moment(self, run_python, tmp_path, delay_s):
        """Whatever numba is at when a child is forked, the child hashes, answers and exits."""
        code = (
            f"{LONG_INPUT}{FORKS}\n"
            "kernels._WAIT_S = 60\n"
            f"expected = digest()\ntime.sleep({delay_s})\n"
            "def work():\n"
            "    return 8 if (kernels.kernel_name(), digest()) == ('numba', expected) else 9\n"
            "print(status(fork(work)), status(fork(work)), kernels.kernel_name())\n"
        )
        expected = ["8", "8", "numba"]
        assert expected == run_python(code, NUMBA_CACHE_DIR=str(tmp_path))


class TestExit:
    """An interpreter that ends while the kernel is loaded ends well and says nothing."""

    @requires_numba
    @pytest.mark.parametrize("delay_s", [0, 0.05, 0.2, 0.5, 1.0])
    def test_the_interpreter_ends(self, run_python, tmp_path, delay_s):
        """Wherever the thread has come to; `run_python` looks at stderr and at the status."""
        code = (
            f"import time\n{LONG_INPUT}\n"
            "kernels._LOAD_BLOCKS = 1\n"
            f"digest()\ntime.sleep({delay_s})\nprint('end')\n"
        )
        expected = ["end"]
        assert expected == run_python(code, NUMBA_CACHE_DIR=str(tmp_path))

    def test_a_load_under_way_is_waited_for(self, loader):
        """The process does not go while LLVM may be compiling."""
        made = _Kernels("auto")
        made.pick(100, PLENTY)
        assert loader.begun.wait(PATIENCE_S)
        ended = threading.Event()
        ending = threading.Thread(target=lambda: (made.end(), ended.set()))
        ending.start()
        assert not ended.wait(0.05)
        loader.may_end.set()
        assert ended.wait(PATIENCE_S)
        ending.join(PATIENCE_S)

    def test_but_not_for_ever(self, loader, monkeypatch):
        """A load that hangs does not keep the process."""
        monkeypatch.setattr(kernels, "_WAIT_S", 0.01)
        made = _Kernels("auto")
        made.pick(100, PLENTY)
        assert loader.begun.wait(PATIENCE_S)
        made.end()
        assert made._loading.locked()

    def test_nothing_is_loaded_in_the_background_after_that(self, loader):
        """What is hashed in the last moments is hashed by hashlib; a demand is still met."""
        loader.may_end.set()
        made = _Kernels("auto")
        made.end()
        assert plain_sum is made.pick(100, PLENTY)
        for thread in background_threads():
            thread.join(PATIENCE_S)
        assert [] == loader.threads
        assert loader.made is made.load()
