import json
import re
import types

import pytest

from bert_tf.config.settings import CommandLine
from bert_tf.finetune.repeats import Repeats, searchable, trials
from bert_tf.finetune.settings import FinetuningSettings
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from tests.helpers.settings import optimization_settings, run_settings, runtime_settings


def settings_of(directory, search="", **changes):
    parse = FinetuningSettings.__dataclass_fields__["search"].metadata["option"].parse
    command = CommandLine({"learning_rate": 1.0, "seed": 1}, defaulted=frozenset(["learning_rate"]))
    return FinetuningSettings(
        bert_config_file=None,
        tokenizer_files=TokenizerFiles(),
        run=run_settings(directory, do_train=True, do_eval=True, command=command),
        optimization=optimization_settings(),
        runtime=runtime_settings(),
        distillation=None,
        features_dir=directory / "features",
        max_seq_length=8,
        length_buckets=False,
        search=parse(search),
        **changes,
    )


def test_the_search_of_the_paper(tmp_path):
    found = trials(settings_of(tmp_path, "bert").search)
    assert len(found) == 18
    assert found[0] == {
        "learning_rate": "5e-5", "train_batch_size": "16", "num_train_epochs": "2"
    }  # fmt: skip


def test_every_trial_and_seed_has_its_settings_and_directory(tmp_path):
    settings = settings_of(
        tmp_path, "--learning_rate=2e-5, 3e-5; layerwise_lr_decay=0.9", seeds=(4, 5)
    )
    called = run_all(settings)
    directories = [str(each.run.output_dir.relative_to(tmp_path)) for each in called]
    assert directories == [
        f"learning_rate={rate},layerwise_lr_decay=0.9/seed_{seed}"
        for rate in ("2e-5", "3e-5")
        for seed in (4, 5)
    ]
    assert [each.optimization.schedule.learning_rate for each in called] == [2e-5] * 2 + [3e-5] * 2
    assert {each.layers.layerwise_lr_decay for each in called} == {0.9}
    command = called[-1].run.command
    assert command.values == {"learning_rate": "3e-5", "layerwise_lr_decay": "0.9", "seed": 1}
    assert command.defaulted == frozenset()
    assert called[0].features_dir == called[-1].features_dir == tmp_path / "features"


def run_all(settings, results=lambda settings: None):
    called, repeats = [], Repeats(settings)
    for own in repeats.runs():
        called.append(own)
        if results(own):
            own.run.output_dir.mkdir(parents=True)
            names = {"metrics": ["f1", "accuracy"], "metric": "accuracy", "digits": 2}
            repeats.add(types.SimpleNamespace(settings=own, **names), RUN, results(own))
    return called


RUN = types.SimpleNamespace(message=print, ranks=types.SimpleNamespace(is_chief=True))


def test_the_best_trial_by_the_mean_of_its_seeds(tmp_path, capsys):
    settings = settings_of(tmp_path, "train_batch_size=1,2,3", seeds=(4, 6))
    accuracies = {1: 0.5, 2: 0.8, 3: 0.6}

    def results(own):
        accuracy = accuracies[own.optimization.batch.micro_batch_size] + own.run.seed / 100
        return {"f1": 1 - accuracy, "accuracy": accuracy}

    run_all(settings, results)
    found = json.loads((tmp_path / "search.json").read_text())
    names = [f"train_batch_size={n}" for n in (2, 3, 1)]
    assert (found["metric"], found["best"], found["trials"]) == ("accuracy", names[0], 3)
    assert [row["trial"] for row in found["found"]] == names
    assert found["found"][0]["accuracy"] == pytest.approx(0.85)
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == f"the best by accuracy is {tmp_path / names[0]}"
    assert shown[-4] == f"f1 0.15  accuracy 0.85  {names[0]}"
    assert shown.count("trial 2 of 3: train_batch_size=2") == 1
    summary = json.loads((tmp_path / names[0] / "seeds.json").read_text())
    assert summary["accuracy"]["by_seed"] == {"4": pytest.approx(0.84), "6": pytest.approx(0.86)}


@pytest.mark.parametrize(("search", "expected"), [
    ("learning_rate", "learning_rate must be a flag with different values"),
    ("learning_rate=1;;", "an empty part must be a flag"),
    ("learning_rate=1,1", "learning_rate=1,1 must be a flag with different values"),
    ("learning_rate=1,", "learning_rate=1, must be"),
    ("learning_rate=1;learning_rate=2", "learning_rate=2 must be"),
    ("seed=1,2", "--search: seed cannot be varied; choose among end_learning_rate"),
    ("max_seq_length=1,2", "max_seq_length cannot be varied"),
    ("learning_rate=fast", "--search: learning_rate=fast must be a number"),
    ("weight_decay=-1", "--weight_decay=-1 must not be negative"),
    ("train_batch_size=0", "--train_batch_size=0 must be at least 1"),
    ("optimizer_type=best", "--optimizer_type=best is not one of"),
])  # fmt: skip
def test_what_cannot_be_searched(tmp_path, search, expected):
    with pytest.raises(UserError, match=re.escape(expected)):
        run_all(settings_of(tmp_path, search))
    assert not list(tmp_path.iterdir())


def test_a_wrong_value_is_found_before_the_first_training(tmp_path):
    trained = []
    with pytest.raises(UserError, match="learning_rate=fast must be a number"):
        run_all(settings_of(tmp_path, "learning_rate=1e-4,fast"), trained.append)
    assert not trained


def test_what_can_be_searched(tmp_path):
    assert {"learning_rate", "train_batch_size", "num_train_epochs", "weight_decay", "freeze"} <= {
        *searchable(settings_of(tmp_path))
    }


def test_nothing_to_compare(tmp_path):
    with pytest.raises(UserError, match="--search compares trained models; add --do_train and an"):
        FinetuningSettings(
            **{**vars(settings_of(tmp_path, "bert")), "run": run_settings(tmp_path, do_train=True)}
        )
