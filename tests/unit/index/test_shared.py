"""Work that two processes share: all of it is done, whatever becomes of the second one."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest


def run(code):
    """Run code in a process of its own, which has one thread, and two cores for all it knows."""
    head = """
        import os
        from cordwood.index import shared
        from cordwood.index.shared import Shared
        os.sched_getaffinity = lambda _: {0, 1}
        me = os.getpid()
    """
    script = textwrap.dedent(head) + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_everything_is_found_in_order():
    """By both, more than a pipe holds; nobody is left behind."""
    output = run("""
        with Shared(64, lambda part: [part * 1000 + i for i in range(1000)], helped=True) as work:
            assert work._process
            found = work.finish()
        print(found == list(range(64000)))
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            print("alone")
    """)
    assert output == ["True", "alone"]


@pytest.mark.parametrize("how", ["os._exit(9)", "os.kill(os.getpid(), 9)", "raise OSError"])
def test_a_helper_that_dies_is_done_without(how):
    """At any moment: what it has not reported is done again."""
    output = run(f"""
        def find(part):
            if os.getpid() != me and part > 2:
                os.close(2)
                {how}
            return [part]
        with Shared(50, find, helped=True) as work:
            print(work.finish() == list(range(50)))
    """)
    assert output == ["True"]


def test_a_system_that_lets_nobody_fork():
    """One does it alone, as for little work, and where help is not wanted."""
    output = run("""
        def refused():
            raise BlockingIOError(11, "Resource temporarily unavailable")
        os.fork = refused
        print("before", len(os.listdir("/proc/self/fd")))
        for parts, helped in ((50, True), (50, False), (2, True)):
            with Shared(parts, lambda part: [part], helped=helped) as work:
                print(work.finish() == list(range(parts)), len(os.listdir("/proc/self/fd")))
    """)
    assert output[::2] == ["before", "True", "True", "True"]
    assert len(set(output[1::2])) == 1


def test_work_that_is_given_up_leaves_nobody():
    """An error in the middle ends the second process as well."""
    output = run("""
        try:
            with Shared(5000, lambda part: [part], helped=True):
                raise LookupError
        except LookupError:
            pass
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            print("alone", len(os.listdir("/proc/self/fd")))
    """)
    assert output == ["alone", "4"]
