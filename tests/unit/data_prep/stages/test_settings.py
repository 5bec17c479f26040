"""Settings that stages share, and their flags."""

import dataclasses
from typing import ClassVar

import pytest
from absl import flags

from bert_tf.cli.settings_flags import from_flags
from bert_tf.config.declared import AT_LEAST_ONE, Settings, setting
from bert_tf.util.errors import UserError
from data_prep.stages.order import STAGES
from data_prep.stages.settings import (
    CallSettings,
    FileSettings,
    InputSettings,
    VersionSettings,
    WorkerSettings,
    output_parameters,
)
from data_prep.stages.stage import define_settings


@dataclasses.dataclass(frozen=True)
class PourRules(Settings):
    heading: ClassVar[str] = "Tea"
    minutes: int = setting(..., "Minutes to wait.", kind=int, bounds=AT_LEAST_ONE)
    sugar: bool = setting(False, "With sugar.")


@dataclasses.dataclass(frozen=True)
class PourSettings(CallSettings, PourRules, FileSettings):
    """A stage."""


@dataclasses.dataclass(frozen=True)
class CupSettings(WorkerSettings, InputSettings):
    """Another one."""


def defined(*kinds, **options):
    values = flags.FlagValues()
    define_settings(*kinds, values=values, **options)
    return values


def test_a_stage_s_own_settings_come_before_those_of_the_call():
    settings = PourSettings("in", "out", 3)
    assert (settings.input_file, settings.output_dir, settings.minutes) == ("in", "out", 3)
    assert output_parameters(settings) == {"minutes": 3, "sugar": False}
    assert output_parameters(settings, "sugar") == {"minutes": 3}
    with pytest.raises(UserError, match=r"^--minutes=0 must be at least 1"):
        PourSettings("in", "out", 0)


def test_flags_have_the_headings_of_their_classes():
    values = defined(PourSettings, output_dir="Where tea is.")
    assert {values[name].heading for name in ("minutes", "sugar")} == {"Tea"}
    assert values["num_workers"].heading == "Processes"
    assert values["output_dir"].help == "Where tea is."
    values(["program", "--input_file=a", "--output_dir=b", "--minutes=4", "--sugar"])
    assert from_flags(PourSettings, values) == PourSettings("a", "b", 4, sugar=True)


@pytest.mark.parametrize("missing", ["input_file", "output_dir", "minutes"])
def test_settings_without_a_default_are_required(missing):
    given = [f"--{name}=1" for name in ("input_file", "output_dir", "minutes") if name != missing]
    with pytest.raises(flags.IllegalFlagValueError, match=f"--{missing} must have a value"):
        defined(PourSettings)(["program", *given])
    defined(PourSettings, optional=[missing])(["program", *given])


def test_several_stages_in_one_command():
    values = defined(
        PourSettings, CupSettings, without=("sugar", VersionSettings), optional=("minutes",)
    )
    assert {"input_file", "num_workers", "minutes"} < set(values)
    assert not {"sugar", "other_versions"} & set(values)
    values(["program", "--input_file=a", "--output_dir=b", "--num_workers=2"])
    assert from_flags(CupSettings, values) == CupSettings("a", num_workers=2)


def test_every_setting_of_a_stage_has_a_default_that_is_valid():
    """A program gives what has no default, and nothing else."""
    given = {"input_file": "a", "output_dir": "b", "vocab_size": 9, "tokenizer_files": None}
    given["keep_languages"] = ("de",)
    for name, row in STAGES.items():
        kind = row.module.Settings
        names = {f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING}
        required = {k: v for k, v in given.items() if k in names}
        assert names == required.keys(), name
        kind(**required, **({"url": ["http://a/b"]} if name == "download" else {}))
