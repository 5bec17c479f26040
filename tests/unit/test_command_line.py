"""Numbers in flags mean what they say or are refused, in every command."""

import importlib

import pytest
from absl import flags

from bert_tf.command_line import Number, parse_flags
from bert_tf.config import pretraining_flags, squad_flags
from bert_tf.errors import UserError
from tests.support import ROOT

# Where infinity says something: no limit, never, always.
INFINITE = {"clip_norm", "null_score_diff_threshold", "na_prob_thresh"}
COMMANDS = [
    "bert_tf.checkpoint.convert",
    "bert_tf.export.squad",
    "bert_tf.launch",
    "bert_tf.tasks.ask",
    "bert_tf.tasks.fill_mask",
    "bert_tf.tasks.squad_metrics",
    "data_prep.create_pretraining_data",
    "data_prep.demo_corpus",
    "data_prep.demo_questions",
    "data_prep.inspect",
    "data_prep.pipeline",
    "data_prep.sentences",
    "data_prep.shards",
    "data_prep.vocabulary",
]


def flags_of_scripts():
    for define in (
        pretraining_flags.define_pretraining_flags,
        squad_flags.define_squad_flags,
    ):
        values = flags.FlagValues()
        define(values)
        yield from (values[name] for name in values)


def flags_of_command(module):
    """What a command adds to the flags of the program, which are as before afterwards."""
    before = set(flags.FLAGS)
    importlib.import_module(module).define_flags()
    added = set(flags.FLAGS) - before
    found = [flags.FLAGS[name] for name in added]
    for name in added:
        delattr(flags.FLAGS, name)
    return found


def refused(flag, text):
    try:
        flag.parser.parse(text)
    except ValueError:
        return True
    return False


def assert_numbers_are_meant(found):
    numbers = [flag for flag in found if flag.parser.flag_type() in ("float", "int")]
    for flag in numbers:
        assert refused(flag, "nan"), flag.name
        for text in ("inf", "-inf", "1e39", "-Infinity"):
            assert refused(flag, text) == (flag.name not in INFINITE), (flag.name, text)
    return {flag.name for flag in numbers}


def test_every_number_of_the_training_scripts():
    names = assert_numbers_are_meant(flags_of_scripts())
    some = "learning_rate weight_decay clip_norm num_train_epochs warmup_proportion masked_lm_prob"
    assert set(some.split()) | {"rank_timeout", "init_loss_scale", "num_train_steps"} <= names


@pytest.mark.parametrize("module", COMMANDS)
def test_every_number_of_a_command(module):
    assert_numbers_are_meant(flags_of_command(module))


def test_no_command_is_forgotten():
    sources = [*ROOT.glob("bert_tf/**/*.py"), *ROOT.glob("data_prep/**/*.py")]
    found = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sources
        if "\ndef define_flags() -> None:" in path.read_text(encoding="utf-8")
    }
    assert found == set(COMMANDS)


def test_numbers_and_their_bounds():
    assert Number().parse("-2.5e-3") == -0.0025
    assert Number().parse("3.4028234e38") == 3.4028234e38
    assert Number(infinite=True).parse("inf") == float("inf")
    assert Number(lower_bound=0.0).parse("0") == 0.0
    with pytest.raises(ValueError, match="non-negative"):
        Number(lower_bound=0.0).parse("-1")
    with pytest.raises(ValueError, match="could not convert"):
        Number().parse("much")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("--learning_rate=nan", "--learning_rate=nan: must be a number; --help lists"),
        ("--learning_rate=inf", "--learning_rate=inf: must be a finite number; --help"),
        ("--lerning_rate=1", "Unknown command line flag 'lerning_rate'. Did you mean"),
    ],
)
def test_a_wrong_flag_is_one_sentence(monkeypatch, given, expected):
    values = flags.FlagValues()
    flags.DEFINE(Number(), "learning_rate", 0.1, "The rate.", flag_values=values)
    monkeypatch.setattr(flags, "FLAGS", values)
    with pytest.raises(UserError) as error:
        parse_flags(["program", given])
    assert str(error.value).startswith(expected)
    assert "\n" not in str(error.value)
    assert parse_flags(["program", "--learning_rate=0.5", "rest"]) == ["program", "rest"]
    assert values.learning_rate == 0.5
