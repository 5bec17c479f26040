"""Ramps as written in flags, against other programs' formulas and in messages."""

import pytest
from absl import flags

from bert_tf.config.ramps import Ramp, parse_length_ramp, parse_ramp
from bert_tf.tasks.pretraining.flags import define_pretraining_flags, pretraining_optimization
from bert_tf.util.errors import UserError


def ramp_of(text, full, **options):
    return parse_ramp(text, flag="batch_ramp").ramp(full, full_flag="the global batch", **options)


def test_stages():
    assert ramp_of("64:0, 128:2000,256:5000", 256) == Ramp((64, 128, 256), (2000, 5000))
    # Updates of one rank are divided like those of the warm-up, rounded up.
    assert ramp_of("64:0,128:2001,256:5000", 256, divisor=4) == Ramp((64, 128, 256), (501, 1250))
    assert ramp_of("256:0", 256) == Ramp((256,))


def test_growth_in_equal_steps():
    assert ramp_of("64+64:6000", 256) == Ramp((64, 128, 192, 256), (2000, 4000, 6000))
    assert ramp_of("64+64:6000", 128, divisor=2) == Ramp((64, 128), (3000,))
    # More stages than updates.
    assert ramp_of("1+1:2", 5) == Ramp((1, 3, 5), (1, 2))


@pytest.mark.parametrize(
    ("start", "step", "samples", "full"),
    [(16, 8, 300_000, 192), (32, 32, 5_859, 512), (1, 1, 9, 4)],
)
def test_growth_over_sequences_as_in_megatron(start, step, samples, full):
    """RampupBatchsizeNumMicroBatchesCalculator of Megatron-LM (microbatches.py)."""
    per_increment = samples / ((full - start) // step)
    ramp = ramp_of(f"{start}+{step}:{samples}seq", full, divisor=7)
    consumed = position = 0
    while consumed <= samples + 3 * full:
        expected = full
        if consumed <= samples:
            expected = min(start + int(consumed / per_increment) * step, full)
        assert ramp.at(position) == expected
        consumed += expected
        position += 1


@pytest.mark.parametrize(
    ("text", "full", "sentence"),
    [
        ("64", 64, r"--batch_ramp=64 is not a ramp; give stages such as 64:0,128:2000,256:5000"),
        ("64:0,128", 128, r"is not a ramp"),
        ("64+8:0", 128, r"is not a ramp"),
        ("64:10,128:20", 128, r"does not cover the updates before 10; .*such as 64:0"),
        ("64:0,32:9,128:20", 128, r"the values of its stages must increase"),
        ("64:0,96:20,128:20", 128, r"the updates of its stages must increase"),
        ("0:0,128:20", 128, r"starts with 0"),
        ("64:0,128:20", 256, r"ends with 128, but the global batch is 256; .*such as 256:1020"),
        ("64+50:20", 256, r"does not grow from 64 to the global batch 256 in steps of 50"),
        ("64+0:20", 256, r"in steps of 0"),
        ("256+64:20", 256, r"does not grow from 256"),
    ],
)
def test_what_is_no_ramp(text, full, sentence):
    with pytest.raises(UserError, match=sentence):
        ramp_of(text, full)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("60:0,128:9", r"--length_ramp=60:0,128:9: a length of 60 is not a multiple of 8"),
        ("64+8:900seq", r"lengths grow with updates, not with sequences"),
        ("64:0,96:9", r"ends with 96, but --max_seq_length is 128"),
    ],
)
def test_what_is_no_ramp_of_lengths(text, sentence):
    with pytest.raises(UserError, match=sentence):
        parse_length_ramp(text, flag="length_ramp", max_seq_length=128)


def parsed(*given):
    values = flags.FlagValues()
    define_pretraining_flags(values)
    values(["program", *given])
    return pretraining_optimization(values)


def test_flags():
    found = parsed("--batch_ramp=64+64:600", "--length_ramp=64:0,100:9", "--max_seq_length=100")
    assert (found.batch.ramp.text, found.length_ramp.full) == ("64+64:600", 100)
    assert (parsed().batch.ramp, parsed().length_ramp) == (None, None)
    with pytest.raises(UserError, match=r"--max_seq_length is 128"):
        parsed("--length_ramp=64:0,100:9")
