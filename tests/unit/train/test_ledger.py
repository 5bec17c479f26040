"""The numbers of a run before its first step, as a table and as a file."""

import json
import platform
import re
import subprocess
import sys
from importlib import metadata

import pytest

import bert_tf
from bert_tf.ranks.ranks import SingleProcess
from bert_tf.train import ledger
from bert_tf.train.start_point import StartPoint
from tests.helpers.jobs import ledger_of
from tests.helpers.settings import optimization_settings

OPTIMIZATION = {
    "accumulation_steps": 3,
    "num_train_steps": 1001,
    "num_warmup_steps": 101,
    "learning_rate": 1e-4,
    "end_learning_rate": 1e-6,
    "decay_power": 0.5,
    "scale_steps_by_ranks": True,
    "learning_rate_scaling": "linear",
}


class TwoRanks(SingleProcess):
    world_size = 2

    def gather(self, value):
        return ["host-b", "host-a"]


def make_ledger(ranks=None, *, num_records=3000, **changes):
    return ledger_of(
        optimization_settings(**{**OPTIMIZATION, **changes}),
        ranks=ranks or TwoRanks(),
        start=StartPoint("model.ckpt-7", 7, 7, 7 * 24),
        records=num_records,
    )


def test_the_numbers_of_a_run_on_two_ranks():
    found = make_ledger()
    assert found["ranks"] == {"world_size": 2, "hosts": ["host-a", "host-b"]}
    assert found["batch"]["global_batch"] == 24
    assert found["batch"]["arithmetic"] == (
        "4 (micro batch) x 3 (accumulation steps) x 2 (ranks) = 24"
    )
    assert found["steps"] == {
        "train_steps_on_one_rank": 1001,
        "warmup_steps_on_one_rank": 101,
        "scaled_by_ranks": True,
        "train_steps": 501,
        "warmup_steps": 51,
        "start_step": 7,
        "schedule_offset": 0,
        "last_step": 501,
    }
    rates = found["learning_rate"]
    assert (rates["requested"], rates["peak"], rates["end"]) == (1e-4, 2e-4, 1e-6)
    assert (rates["scaling"], rates["schedule"], rates["decay_power"]) == (
        "linear",
        "polynomial",
        0.5,
    )
    # 501 steps of 24 sequences are 12,024, a little more than four times 3,000.
    assert found["consumption"] == {"sequences": 12_024, "records": 3000, "epochs": 4.008}
    assert (found["precision"]["policy"], found["precision"]["xla"]) == ("fp32", False)
    assert found["data"] == {"sha256": "abc", "train_records": 3000, "seed": 1}


def test_a_schedule_shows_its_own_options_and_its_second_phase():
    rates = make_ledger(schedule="exponential", decay_power=1.0, decay_rate=0.9, decay_steps=25)[
        "learning_rate"
    ]
    assert rates == {
        "requested": 1e-4,
        "scaling": "linear",
        "peak": 2e-4,
        "end": 1e-6,
        "schedule": "exponential",
        "decay_rate": 0.9,
        "decay_steps": 12.5,
        "warmup_power": 1.0,
        "rewarm_at_step": None,
    }
    rates = make_ledger(rewarm_at_step=500, num_rewarm_steps=31)["learning_rate"]
    assert (rates["rewarm_at_step"], rates["rewarm_steps"]) == (250, 16)


def test_ranks_of_one_host_name_it_once():
    class OneHost(TwoRanks):
        def gather(self, value):
            return [value, value]

    assert len(make_ledger(OneHost())["ranks"]["hosts"]) == 1


@pytest.mark.parametrize(
    ("changes", "section", "name", "expected"),
    [
        ({}, "optimizer", "bias_correction", False),
        ({"optimizer_options": {"bias_correction": True}}, "optimizer", "bias_correction", True),
        ({"optimizer": "lamb"}, "optimizer", "bias_correction", True),
        ({"optimizer": "lamb"}, "optimizer", "max_trust_ratio", None),
        (
            {"optimizer": "lamb", "optimizer_options": {"min_trust_ratio": 0.01}},
            "optimizer",
            "min_trust_ratio",
            0.01,
        ),
        ({}, "optimizer", "beta_2", 0.999),
        ({"optimizer_options": {"beta_2": 0.98}}, "optimizer", "beta_2", 0.98),
        ({"weight_decay": 0.3}, "optimizer", "weight_decay", 0.3),
        ({}, "communication", "allreduce", "once an update"),
        (
            {"allreduce_every_micro_batch": True},
            "communication",
            "allreduce",
            "every micro batch",
        ),
        ({"scale_steps_by_ranks": False}, "steps", "train_steps", 1001),
    ],
)
def test_what_follows_from_settings(changes, section, name, expected):
    assert make_ledger(**changes)[section][name] == expected


def test_the_optimizer_has_its_options_and_no_others():
    options = ["bias_correction", "beta_1", "beta_2"]
    kept = ["name", "weight_decay", *options, "clip_norm", "loss_normalization"]
    assert list(make_ledger()["optimizer"]) == [*kept, "operations"]
    own = {"min_trust_ratio", "max_trust_ratio", "exclude_from_layer_adaptation"}
    assert set(make_ledger(optimizer="lans")["optimizer"]) == {*kept, *own, "operations"}
    own.add("prenormalize")
    assert set(make_ledger(optimizer="lamb")["optimizer"]) == {*kept, *own, "operations"}
    factors = make_ledger(rate_factors=(("^bert/", 0.0), ("cls", 0.5)))
    assert shown(factors)["optimizer"].endswith("rate_factors=^bert/:0,cls:0.5")


def test_shared_state_is_named_with_its_bytes():
    found = make_ledger(shard_optimizer_state=True)
    optimizer, communication = found["optimizer"], found["communication"]
    assert optimizer["state_shared_out"] == "over 2 ranks"
    assert optimizer["slot_bytes_of_a_rank"] == 24
    assert communication["allreduce"].startswith("reduce-scatter")
    assert communication["embeddings"] == "table"
    alone = make_ledger(SingleProcess(1), shard_optimizer_state=True)
    assert alone["optimizer"]["state_shared_out"] == "no: a single rank"
    assert alone["communication"]["allreduce"] == "once an update"


def test_no_records_are_no_epochs():
    assert make_ledger(num_records=0)["consumption"]["epochs"] == 0


def test_the_table_has_a_line_per_section_and_aligned_entries():
    found = make_ledger(clip_norm=None, learning_rate=1 / 3)
    first, *lines, last = ledger.format_ledger(found).splitlines()
    assert first == "-- ledger " + "-" * 60
    assert last == "-" * 70
    named = [line for line in lines if not line.startswith(" ")]
    assert [line.split()[0] for line in named] == list(found)
    assert len({re.match(r"\w* +", line).end() for line in lines}) == 1
    table = dict(line.split(maxsplit=1) for line in named)
    assert table["ranks"] == "world_size=2  hosts=host-a,host-b"
    assert table["learning_rate"].startswith("requested=0.333333  scaling=linear  peak=0.666667  ")
    assert "clip_norm=None" in shown(found)["optimizer"]


def shown(found, **changes):
    """Section -> its entries, in one line, as the table shows them."""
    sections, name = {}, ""
    lines = ledger.format_ledger(found, **changes).splitlines()[1:-1]
    width = re.match(r"\w+ +", lines[0]).end()
    for line in lines:
        name = line.split(" ")[0] or name
        sections[name] = f"{sections.get(name, '')}  {line[width:]}".strip()
    return sections


def test_no_line_is_longer_than_a_hundred_columns():
    found = make_ledger()
    found["speed"] = {"conditions": "a processor with a long name, " * 8, "after": 1}
    found["data"] = {"sha256": 64 * "a", "eval_sha256": 64 * "b", "path": 120 * "c"}
    lines = ledger.format_ledger(found).splitlines()
    long = [line for line in lines if len(line) > 100]
    assert [line.strip() for line in long] == ["path=" + 120 * "c"], "what is copied stays whole"
    assert shown(found)["data"].split("  ") == [f"{k}={v}" for k, v in found["data"].items()]
    conditions, after = shown(found)["speed"].split("  after")
    assert conditions.replace("  ", " ") == f"conditions={found['speed']['conditions']}".strip()
    assert after == "=1"


def test_entries_of_ranks_are_hidden_from_a_single_process():
    found = make_ledger(SingleProcess(1))
    alone, several = shown(found, several_ranks=False), shown(found)
    assert set(several) - set(alone) == {"ranks", "communication"}
    assert alone["steps"] == (
        "train_steps=1001  warmup_steps=101  start_step=7  schedule_offset=7  last_step=994"
    )
    assert alone["learning_rate"].startswith("peak=0.0001  ")
    assert "scaled_by_ranks=True" in several["steps"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (65536.0, "65536"),
        (1e6, "1000000"),
        (2.0**32, "4294967296"),
        (1000000, "1000000"),
        (1234567.5, "1.23457e+06"),
        (0.0, "0"),
        (1e-4, "0.0001"),
        (1 / 3, "0.333333"),
        (3.4e38, "3.4e+38"),
        (float("inf"), "inf"),
        (True, "True"),
        (None, "None"),
        ([1.0, "a"], "1,a"),
    ],
)
def test_whole_numbers_have_all_their_digits(value, expected):
    assert ledger.show_value(value) == expected


def test_what_is_nested_is_for_the_file_alone():
    found = {"source": {"files": 2, "sentences": {"first": {"number": 1.0}}}}
    assert shown(found) == {"source": "files=2"}


def test_run_json(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run_pretraining.py", "--do_train"])
    found = make_ledger()
    ledger.write_run_json(tmp_path, ledger=found, flags={"seed": 3}, model={"hidden_size": 8})
    record = json.loads((tmp_path / "run.json").read_text())
    assert record.keys() == {
        *("ledger", "flags", "model", "model_record", "versions", "git_commit", "command")
    }
    assert record["ledger"] == found
    assert record["flags"] == {"seed": 3}
    assert record["model"] == {"hidden_size": 8}
    assert record["versions"] == ledger.versions()
    assert record["command"] == ["run_pretraining.py", "--do_train"]


def test_versions():
    found = ledger.versions()
    assert found["python"] == platform.python_version()
    assert found["bert_tf"] == bert_tf.__version__
    assert found["numpy"] == metadata.version("numpy")
    assert "tensorflow" in found or "tensorflow-cpu" in found
    assert all(isinstance(version, str) for version in found.values())


def test_packages_that_are_not_installed_are_left_out():
    found = ledger.versions(["numpy", "no-such-package"])
    assert found.keys() == {"python", "bert_tf", "numpy"}


@pytest.fixture(name="package")
def package_directory(tmp_path, monkeypatch):
    """The apparent location of the package."""
    # A checkout around the temporary directory must not be found.
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    directory = tmp_path / "bert_tf"
    directory.mkdir()
    monkeypatch.setattr(bert_tf, "__file__", str(directory / "__init__.py"))
    return directory


def git(directory, *command):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(
        ["git", *identity, *command], cwd=directory, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_commit_of_a_checkout(package):
    git(package, "init")
    (package / "__init__.py").touch()
    git(package, "add", "__init__.py")
    assert ledger.git_commit() is None, "there is no commit yet"
    git(package, "commit", "-m", "first")
    assert ledger.git_commit() == git(package, "log", "-1", "--format=%H")


def test_the_commit_of_others_who_installed_the_package_in_theirs_is_not_its_own(package):
    (package / "__init__.py").touch()
    git(package.parent, "init")
    git(package.parent, "commit", "--allow-empty", "-m", "theirs")
    assert ledger.git_commit() is None


def test_no_commit_outside_of_a_checkout(package):
    assert ledger.git_commit() is None


def test_no_commit_without_git(package, monkeypatch):
    monkeypatch.setenv("PATH", str(package))
    assert ledger.git_commit() is None
