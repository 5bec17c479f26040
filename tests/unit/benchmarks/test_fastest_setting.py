"""The settings beside auto, and how near auto comes to the best of them."""

import pytest

from benchmarks.fastest_setting import AUTO, every_setting, time_in_turn
from benchmarks.results import median_ratio, spread_result


def test_rates_are_compared_turn_by_turn():
    """A turn in which all are three times slower changes nothing."""
    auto, slower, faster = (
        spread_result("rate", turns, "x", {})
        for turns in ([6.0, 2.0, 6.0], [3.0, 1.0, 3.0], [6.6, 2.2, 1.0])
    )
    assert median_ratio(auto, auto) == 1.0
    assert median_ratio(auto, slower) == 2.0
    assert median_ratio(auto, faster) == pytest.approx(1 / 1.1)


def test_all_take_turns_and_another_one_begins_each_time():
    order, clock = [], iter(range(100))
    steps = {name: (lambda name=name: order.append(name)) for name in "abc"}
    found = time_in_turn(steps, 2, lambda: next(clock))
    assert "".join(order) == "abcbca"
    assert found == {"a": [1, 1], "b": [1, 1], "c": [1, 1]}


def test_every_setting_is_one_that_a_user_can_give():
    settings = every_setting(8)
    assert list(settings)[:2] == [AUTO, "fp32, native, threads 8"]
    assert len({str(s) for s in settings.values()}) == len(settings) == 1 + 2 * 2 * 2
    assert {s["threads"] for name, s in settings.items() if name != AUTO} == {8, 4}
    assert len(every_setting(1)) == 1 + 2 * 2
