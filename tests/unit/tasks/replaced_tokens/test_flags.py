"""The flags of run_electra.py, and the generator that follows from them."""

import dataclasses

import pytest
from absl import flags as absl_flags

from bert_tf.model.config import BertConfig
from bert_tf.tasks.replaced_tokens.objective import (
    ReplacedTokens,
    define_electra_flags,
    electra_settings,
)
from bert_tf.util.errors import UserError

BASE = BertConfig(vocab_size=30522)


@pytest.fixture(name="parse")
def parser(tmp_path):
    """Parses flags, with the required ones given."""
    (tmp_path / "train.tfrecord").write_text("content")

    def parse(*given):
        values = absl_flags.FlagValues()
        define_electra_flags(values)
        usual = [
            "--hidden_size=32",
            f"--output_dir={tmp_path / 'out'}",
            f"--input_file={tmp_path / 'train.tfrecord'}",
            "--do_train",
        ]
        values(["run_electra.py", *usual, *given])
        return electra_settings(values)

    return parse


def test_the_defaults_are_those_of_the_paper(parse):
    settings = parse()
    assert settings.objective == ReplacedTokens(50.0, 0.25, 1.0)
    assert not settings.next_sentence


def test_every_flag_has_its_field(parse):
    given = {"discriminator_weight": 20.0, "generator_hidden_size": 0.5, "generator_layers": 0.75}
    settings = parse(*(f"--{name}={value}" for name, value in given.items()))
    assert settings.objective == ReplacedTokens(**given)


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--nsp", "--nsp: replaced-token detection has no next sentences; drop the flag"),
        ("--mlm=false", "--mlm=false leaves no generator to replace tokens; drop the flag"),
        ("--generator_hidden_size=0", "--generator_hidden_size=0 must be in (0, 1]; a fraction"),
        ("--generator_layers=1.5", "--generator_layers=1.5 must be in (0, 1]; a fraction"),
        ("--discriminator_weight=0", "run_pretraining.py --nsp=false trains a masked LM alone"),
    ],
)
def test_wrong_flags_give_a_sentence(parse, flag, words):
    with pytest.raises(UserError) as error:
        parse(flag)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("share", "layers", "expected"),
    [
        (0.25, 1.0, (192, 3, 768, 12)),  # heads 64 wide, as in the published networks
        (0.33333, 0.5, (256, 4, 1024, 6)),  # ELECTRA-base has a third
        (0.01, 0.01, (64, 1, 256, 1)),
        (1.0, 1.0, (768, 12, 3072, 12)),
    ],
)
def test_the_generator_has_whole_heads_of_the_same_width(share, layers, expected):
    names = ("hidden_size", "num_attention_heads", "intermediate_size", "num_hidden_layers")
    objective = ReplacedTokens(generator_hidden_size=share, generator_layers=layers)
    generator = objective.generator(BASE)
    assert tuple(getattr(generator, name) for name in names) == expected
    assert dataclasses.replace(generator, **{n: getattr(BASE, n) for n in names}) == BASE
    section = objective.task(BASE).ledger()["replaced_tokens"]
    assert section["generator_hidden_size"] == expected[0]
