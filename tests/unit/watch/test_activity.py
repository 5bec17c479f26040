"""A process that works is told from one that hangs, by its threads alone."""

import sys
import threading
import time

import pytest

from bert_tf.watch.activity import _READERS, _SESSION, Activity


def waiter_in(filename):
    """A function that waits for an event, compiled as if it stood in ``filename``."""
    scope = {}
    exec(compile("def wait(event):\n    event.wait()\n", filename, "exec"), scope)
    return scope["wait"]


def looks(times, *, main_waits_in, moves=None, records_read=int):
    """What a thread sees at each of ``times`` (seconds) while the main thread waits."""
    now = [0.0]
    activity = Activity(records_read, clock=lambda: now[0])
    done, found = threading.Event(), []

    def look():
        try:
            wait_until_blocked(threading.main_thread().ident)
            for seconds in times:
                now[0] = seconds
                found.append(activity.look())
                if moves is not None:
                    moves()
        finally:
            done.set()

    thread = threading.Thread(target=look)
    thread.start()
    main_waits_in(done)
    thread.join()
    return found


def wait_until_blocked(thread):
    """The thread's stack has two looks in a row that end in the wait for a lock."""
    while True:
        frame = sys._current_frames()[thread]
        if frame.f_code.co_name == "wait":
            before = time.clock_gettime_ns(time.pthread_getcpuclockid(thread))
            time.sleep(0.05)
            if time.clock_gettime_ns(time.pthread_getcpuclockid(thread)) == before:
                return


def plain_wait(event):
    event.wait()


in_session = waiter_in(f"/somewhere/{_SESSION}")
in_reader = waiter_in(f"{_READERS[0]}/reader.py")


def test_a_main_thread_that_waits_in_python_is_stuck():
    found = looks([0.0, 4.0, 9.0], main_waits_in=plain_wait)
    assert [seconds for seconds, _ in found] == [0.0, 4.0, 9.0]
    assert found[0][1] == ""
    assert "line" in found[1][1]


def test_a_main_thread_that_works_is_not_stuck():
    done, found = threading.Event(), []
    now = [0.0]
    activity = Activity(int, clock=lambda: now[0])

    def look():
        for seconds in range(4):
            time.sleep(0.1)
            now[0] = float(seconds)
            found.append(activity.look())
        done.set()

    thread = threading.Thread(target=look)
    thread.start()
    while not done.is_set():
        sum(range(1000))
    thread.join()
    assert found == [(0.0, "")] * 4


def test_waiting_in_a_session_is_no_reason_to_worry():
    assert looks([0.0, 100.0, 1000.0], main_waits_in=in_session) == [(0.0, "")] * 3


@pytest.fixture
def blocked_reader():
    """A thread that waits inside the code that reads records; the event ends it."""
    event = threading.Event()
    thread = threading.Thread(target=in_reader, args=[event], daemon=True)
    thread.start()
    wait_until_blocked(thread.ident)
    yield event
    event.set()
    thread.join()


def test_a_session_whose_records_are_not_read_is_stuck_there(blocked_reader):
    found = looks([0.0, 7.0], main_waits_in=in_session)
    assert found == [(0.0, ""), (7.0, "wait (bert_tf/input/reader.py, line 2)")]


def test_a_reader_that_goes_on_is_not_stuck(blocked_reader):
    """Here it ends, and the session waits for others."""

    def moves():
        blocked_reader.set()
        time.sleep(0.2)

    found = looks([0.0, 7.0, 9.0], main_waits_in=in_session, moves=moves)
    assert found == [(0.0, "")] * 3


def test_a_reader_that_gives_records_is_not_stuck_however_slow(blocked_reader):
    """Each look finds it in the same line, where it waits for the disk."""
    counts = iter([1, 2, 3, 3, 3])
    found = looks(
        [0.0, 7.0, 9.0, 12.0, 20.0],
        main_waits_in=in_session,
        records_read=lambda: next(counts),
    )
    assert [seconds for seconds, _ in found] == [0.0, 0.0, 0.0, 3.0, 11.0]
