"""Progress lines under a clock that the test moves."""

import contextlib
import io

import pytest

from bert_tf.util.progress import Progress, format_duration


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def lines_of(total, steps, *, interval_seconds=5.0, finish=False):
    """What is printed when each (seconds, amount) passes in turn."""
    clock, stream = Clock(), io.StringIO()
    progress = Progress("reading", total, "MB", interval_seconds=interval_seconds, clock=clock)
    with contextlib.redirect_stderr(stream):
        for seconds, amount in steps:
            clock.now += seconds
            progress.advance(amount)
        if finish:
            progress.finish()
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-3, "0s"),
        (0.4, "0s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (95, "1m35s"),
        (3_599.7, "1h00m"),
        (3_600 + 5 * 60, "1h05m"),
        (86_399, "23h59m"),
        (2 * 86_400 + 3 * 3_600, "2d03h"),
    ],
)
def test_format_duration(seconds, expected):
    assert format_duration(seconds) == expected


def test_a_line_has_the_share_the_mean_rate_and_the_time_left():
    # 20 MB in 8 seconds are 2.5 MB/s, so that the other 1,980 MB take 792 seconds.
    assert lines_of(2000.0, [(8.0, 20.0)]) == [
        "reading: 20.0/2,000.0 MB (1%), 2.5 MB/s, 13m12s left"
    ]


def test_no_more_is_done_than_there_is():
    assert lines_of(14, [(8.0, 16)]) == ["reading: 14/14 MB (100%), 2.0 MB/s, 0s left"]


def test_at_most_one_line_an_interval():
    printed = lines_of(100.0, [(2.0, 1.0)] * 8)
    # Seconds 6 and 12 after the start: every line starts a new interval.
    assert [line.split("/")[0] for line in printed] == ["reading: 3.0", "reading: 6.0"]


def test_without_a_total_there_is_no_share_and_no_time_left():
    assert lines_of(None, [(10.0, 5.0)]) == ["reading: 5.0 MB, 0.5 MB/s"]


def test_nothing_done_yet():
    assert lines_of(10.0, [(10.0, 0.0)]) == ["reading: 0.0/10.0 MB (0%), 0.0 MB/s"]


def test_the_last_line():
    assert lines_of(10.0, [(2.0, 6.0), (2.0, 4.0)], finish=True) == [
        "reading: done, 10.0 MB in 4s (2.5 MB/s)"
    ]


def test_work_that_takes_no_time_at_all():
    assert lines_of(1.0, [], finish=True) == ["reading: done, 0.0 MB in 0s (0.0 MB/s)"]


def test_lines_go_to_stderr(capsys):
    Progress("reading", None, "MB").finish()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("reading: done")


def test_whole_units_are_shown_as_such():
    [line] = lines_of(2000, [(8.0, 20)])
    assert line.startswith("reading: 20/2,000 MB (1%), 2.5 MB/s")
    assert lines_of(3, [], finish=True) == ["reading: done, 0 MB in 0s (0.0 MB/s)"]
