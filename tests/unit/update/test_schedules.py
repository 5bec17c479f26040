"""Schedules against formulas written a second time, one step at a time, and against libraries."""

import math

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.update.schedules import DECAY_FORMS, SCHEDULES, Schedule, google, polynomial

WSD = "warmup_stable_decay"
JOINED = [name for name in SCHEDULES if name != "google"]
PEAK = 0.003

# Settings of every schedule and option; the peak and the steps are added.
VARIANTS = [
    ("polynomial", {}),
    ("polynomial", {"decay_power": 0.5, "warmup_power": 2.0}),
    ("google", {"decay_power": 0.5}),
    ("google", {"warmup_power": 2.0}),
    ("constant", {"warmup_power": 1.5}),
    ("cosine", {}),
    *((WSD, {"decay_share": 0.3, "decay_form": form}) for form in DECAY_FORMS),
    (WSD, {"decay_share": 0.0, "decay_form": "linear"}),
    ("one_cycle", {"cycle_start": 0.04}),
    ("one_cycle", {"cycle_start": 0.1, "warmup_power": 0.5}),
    ("exponential", {"decay_rate": 0.9, "decay_steps": 2.5, "warmup_power": 2.0}),
]


def expected(name, step, *, total, warmup, end, options):
    """The rate for a peak of 1, by cases."""
    power = options.get("decay_power", 1)
    if name == "google":
        if step < warmup:
            return (step / warmup) ** options.get("warmup_power", 1)
        return end + (1 - end) * (1 - min(step, total) / total) ** power
    start = options.get("cycle_start", 0)
    if step < warmup:
        return start + (1 - start) * ((step + 1) / warmup) ** options.get("warmup_power", 1)
    if name == "constant":
        return 1
    if name == "exponential":
        return end + (1 - end) * math.exp(
            math.log(options["decay_rate"]) * (step - warmup) / options["decay_steps"]
        )
    if name == "one_cycle":
        if step < 2 * warmup:
            return 1 - (1 - start) * (step - warmup) / warmup
        done = (step - 2 * warmup) / (total - 2 * warmup) if step < total else 1
        return start + (end - start) * done
    begin = warmup
    if name == WSD:
        begin = total - options["decay_share"] * total
    if step < begin:
        return 1
    x = min((step - begin) / max(total - begin, 1), 1)
    if name == "polynomial":
        return end + (1 - end) * (1 - x) ** power
    form = options.get("decay_form", "cosine")
    falls = {"linear": 1 - x, "cosine": (1 + math.cos(math.pi * x)) / 2, "1-sqrt": 1 - math.sqrt(x)}
    return end + (1 - end) * falls[form]


@pytest.mark.parametrize("warmup", [0, 1, 4, 10])
@pytest.mark.parametrize("end", [0.0, 0.02])
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_each_schedule_is_its_formula(name, options, warmup, end):
    if name == "one_cycle" and not warmup:
        pytest.skip("a cycle has a warm-up")
    total = 30
    steps = [0, warmup - 1, warmup, warmup + 1, 2 * warmup, 21, 22, total - 1, total, total + 1]
    steps = sorted({step for step in steps if step >= 0})
    schedule = Schedule(name, PEAK, total, warmup, end * PEAK, options)
    wanted = [
        PEAK * expected(name, step, total=total, warmup=warmup, end=end, options=options)
        for step in steps
    ]
    np.testing.assert_allclose(schedule.rate(np.array(steps)), wanted, rtol=1e-12, atol=1e-18)
    assert float(schedule.rate(steps[-1])) == pytest.approx(wanted[-1])
    # float32, as in training.
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.placeholder(tf.int64, [])
        rate = schedule.rate(step)
        assert rate.dtype == tf.float32
        assert rate.shape == []
        rates = [session.run(rate, {step: value}) for value in steps]
    np.testing.assert_allclose(rates, wanted, rtol=2e-6, atol=1e-10)


def test_the_options_of_a_row_are_the_keywords_of_its_function():
    used = {name: set() for name in SCHEDULES}
    for name, options in VARIANTS:
        used[name] |= options.keys()
        assert options.keys() <= set(SCHEDULES[name].options)
    for name, row in SCHEDULES.items():
        options = {"warmup_power": 1.0, "decay_rate": 0.5, "decay_steps": 1.0} | {
            key: value for _, variant in VARIANTS for key, value in variant.items()
        }
        Schedule(name, 1.0, 10, 1, options={key: options[key] for key in row.options}).rate(0)
        with pytest.raises(TypeError):
            SCHEDULES["cosine"].function(0, peak_rate=1.0, total_steps=1, cycle_start=0.1)


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 0.25),  # the first update learns
        (2, 0.75),
        (3, 1.0),  # the last update of the warm-up has the full rate
        (4, 1.0),  # and the decay starts there
        (5, 0.9),
        (9, 0.5),
        (13, 0.1),  # the last update
        (14, 0.0),
        (1000, 0.0),
    ],
)
def test_warmup_joined_to_linear_decay(step, rate):
    assert polynomial(step, peak_rate=1.0, total_steps=14, warmup_steps=4) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 0.0),
        (3, 0.75),
        (4, 0.6),  # drops from what would be 1.0
        (9, 0.1),  # the last update
        (10, 0.0),
        (99, 0.0),
    ],
)
def test_googles_overlaid_warmup(step, rate):
    assert google(step, peak_rate=1.0, total_steps=10, warmup_steps=4) == pytest.approx(rate)


def test_a_run_of_warmup_only_and_a_run_of_no_steps():
    rates = polynomial(np.arange(4), peak_rate=1.0, total_steps=3, warmup_steps=3)
    np.testing.assert_allclose(rates, [1 / 3, 2 / 3, 1.0, 1.0])
    assert polynomial(0, peak_rate=1.0, total_steps=0) == 1.0


def drawn_schedules(names):
    """Schedules of a few hundred steps whose parts fit, with a peak of 1."""

    @st.composite
    def draw(draw_):
        name = draw_(st.sampled_from(names))
        warmup = draw_(st.integers(1 if name == "one_cycle" else 0, 50))
        total = warmup + draw_(st.integers(max(1, warmup), 200))
        values = {
            "warmup_power": st.sampled_from([1.0, 2.0, 0.5]),
            "decay_power": st.sampled_from([1.0, 2.0, 0.5]),
            "decay_share": st.floats(0, (total - warmup) / total),
            "decay_form": st.sampled_from(DECAY_FORMS),
            "decay_rate": st.floats(0.1, 1),
            "decay_steps": st.floats(1, 100),
            "cycle_start": st.floats(0.2, 1),
        }
        options = {option: draw_(values[option]) for option in SCHEDULES[name].options}
        end = draw_(st.floats(0, 0.2)) if SCHEDULES[name].has_end else 0.0
        return Schedule(name, 1.0, total, warmup, end, options)

    return draw()


@settings(max_examples=150, deadline=None)
@given(schedule=drawn_schedules(JOINED))
def test_a_joined_schedule_reaches_its_peak_and_does_not_jump(schedule):
    total, warmup = schedule.total_steps, schedule.warmup_steps
    rates = schedule.rate(np.arange(total + 3))
    assert rates[max(warmup - 1, 0)] == 1.0
    assert rates[warmup] == 1.0
    assert rates.max() <= 1 + 1e-12
    assert rates.min() >= 0
    assert np.all(rates[:total] > 0)
    assert np.all(np.diff(rates[: warmup + 1]) >= -1e-15)
    assert np.all(np.diff(rates[warmup:]) <= 1e-15)
    assert np.abs(np.diff(rates)).max() <= steepest_step(schedule) + 1e-12


def power_step(share, power):
    """The most that ``x ** power`` changes between 0 and 1 while x changes by ``share``."""
    return 1 - (1 - share) ** power if power >= 1 else share**power


def steepest_step(schedule):
    """The largest change in one step that the slopes of a continuous curve with peak 1 allow."""
    options, warmup, total = schedule.options, schedule.warmup_steps, schedule.total_steps
    start = options.get("cycle_start", 0)
    rise = power_step(1 / warmup, options.get("warmup_power", 1.0)) if warmup else 0
    steps = options["decay_share"] * total if "decay_share" in options else total - warmup
    share = 1 / max(steps, 1)
    fall = {
        "polynomial": lambda: power_step(share, options["decay_power"]),
        "constant": lambda: 0,
        "exponential": lambda: 1 - options["decay_rate"] ** (1 / options["decay_steps"]),
        "one_cycle": lambda: max(1 / warmup * (1 - start), start / max(total - 2 * warmup, 1)),
        "cosine": lambda: math.sin(math.pi / 2 * share),
        WSD: lambda: {
            "linear": share,
            "cosine": math.sin(math.pi / 2 * share),
            "1-sqrt": share**0.5,
        }[options["decay_form"]],
    }
    return max(rise * (1 - start), fall[schedule.name]())


@settings(max_examples=100, deadline=None)
@given(
    first=drawn_schedules([name for name, row in SCHEDULES.items() if row.can_rewarm]),
    rewarm=st.integers(1, 50),
    rest=st.integers(1, 100),
)
def test_a_second_phase_warms_up_from_the_last_rate(first, rewarm, rest):
    at = first.total_steps
    total = at + rewarm + rest
    both = Schedule(
        first.name, 1.0, total, first.warmup_steps, first.end_rate, first.options, at, rewarm
    )
    rates = both.rate(np.arange(total + 2))
    np.testing.assert_array_equal(rates[:at], first.rate(np.arange(at)))
    last = float(first.rate(at))
    risen = (np.arange(1, rewarm + 1) / rewarm) ** first.options["warmup_power"]
    np.testing.assert_allclose(rates[at : at + rewarm], last + (1 - last) * risen, rtol=1e-12)
    assert rates[at + rewarm - 1] == 1.0
    assert rates.max() <= 1 + 1e-12
    assert rates.min() >= 0
    # What follows is the schedule of a run with the remaining steps.
    alone = Schedule(first.name, 1.0, total - at, rewarm, first.end_rate, first.options)
    after = np.arange(rewarm, total - at + 2)
    np.testing.assert_allclose(rates[at + rewarm :], alone.rate(after), rtol=1e-12, atol=1e-15)


def test_a_second_phase_in_a_graph():
    schedule = Schedule("cosine", PEAK, 1000, 10, PEAK / 10, {"warmup_power": 0.5}, 600, 20)
    steps = [0, 9, 10, 599, 600, 601, 619, 620, 999, 1000]
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.placeholder(tf.int64, [])
        rates = [session.run(schedule.rate(step), {step: value}) for value in steps]
    np.testing.assert_allclose(rates, schedule.rate(np.array(steps)), rtol=2e-6)


def library_rates(make, steps):
    """The factors of a PyTorch schedule for the updates from 0 on."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, rates = make(optimizer), []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return np.array(rates)


TOTAL, WARMUP = 40, 6
LIBRARIES = {
    "linear": (
        Schedule("polynomial", 1.0, TOTAL, WARMUP),
        lambda o: transformers.get_linear_schedule_with_warmup(o, WARMUP, TOTAL),
    ),
    "power": (
        Schedule("polynomial", 1.0, TOTAL, WARMUP, 0.1, {"decay_power": 2.0}),
        lambda o: transformers.get_polynomial_decay_schedule_with_warmup(
            o, WARMUP, TOTAL, lr_end=0.1, power=2.0
        ),
    ),
    "constant": (
        Schedule("constant", 1.0, TOTAL, WARMUP),
        lambda o: transformers.get_constant_schedule_with_warmup(o, WARMUP),
    ),
    "cosine": (
        Schedule("cosine", 1.0, TOTAL, WARMUP, 0.2),
        lambda o: transformers.get_cosine_with_min_lr_schedule_with_warmup(
            o, WARMUP, TOTAL, min_lr_rate=0.2
        ),
    ),
    "PyTorch's cosine": (
        Schedule("cosine", 1.0, TOTAL, 0, 0.2),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, TOTAL, eta_min=0.2),
    ),
    **{
        f"warmup_stable_decay, {form}": (
            Schedule(WSD, 1.0, TOTAL, WARMUP, 0.0, {"decay_share": 0.25, "decay_form": form}),
            lambda o, form=form: transformers.get_wsd_schedule(
                o, WARMUP, TOTAL // 4, num_training_steps=TOTAL, decay_type=form
            ),
        )
        for form in DECAY_FORMS
    },
    # Its last rate is that of step total_steps - 1; all phases end one step earlier than ours.
    "one_cycle": (
        Schedule("one_cycle", 1.0, TOTAL, WARMUP, 0.001, {"cycle_start": 0.04}),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(
            o,
            1.0,
            total_steps=TOTAL + 1,
            pct_start=(WARMUP + 1) / (TOTAL + 1),
            div_factor=25,
            final_div_factor=40,
            three_phase=True,
            anneal_strategy="linear",
            cycle_momentum=False,
        ),
    ),
    "exponential": (
        Schedule("exponential", 1.0, TOTAL, 0, 0.0, {"decay_rate": 0.9, "decay_steps": 1}),
        lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
    ),
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_libraries_have_the_same_curve(name):
    """Their warm-up begins at rate 0, a step earlier than here; then they are the same."""
    schedule, make = LIBRARIES[name]
    theirs = library_rates(make, TOTAL + 1)
    warmup = schedule.warmup_steps
    ours = schedule.rate(np.arange(TOTAL + 1))
    np.testing.assert_allclose(ours[:warmup], theirs[1 : warmup + 1], rtol=1e-6)
    np.testing.assert_allclose(ours[warmup:], theirs[warmup:], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("degree", [1, 2])
def test_bing_berts_exponential_decay_follows_one_update_later(degree):
    """Its rule, with the figures of its file for sequences of 128 tokens."""
    peak, total, share, rate, every = 11e-3, 7500, 0.06, 0.9, 250
    schedule = Schedule(
        "exponential",
        peak,
        total,
        round(share * total),
        options={"decay_rate": rate, "decay_steps": every, "warmup_power": degree},
    )
    for step in (0, 1, 200, 449, 450, 451, 700, 7499):
        done = step / total
        theirs = (done / share) ** degree if done < share else rate ** ((step - 450) / every)
        position = step - 1 if step < 450 else step
        if position >= 0:
            assert float(schedule.rate(position)) == pytest.approx(peak * theirs)


def test_tensor_schedule_follows_a_variable():
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.create_global_step()
        rate = polynomial(step, peak_rate=1.0, total_steps=14, warmup_steps=4)
        session.run(tf.global_variables_initializer())
        assert session.run(rate) == pytest.approx(0.25)
        session.run(step.assign(9))
        assert session.run(rate) == pytest.approx(0.5)
