"""Fine-tunings of a tiny network here and by transformers, as a whole, and what is refused."""

import csv
import json

import pytest
import transformers

from benchmarks.studies import fine_tuning
from tests.helpers import tagging_files
from tests.helpers.programs import run
from tests.helpers.small_span_model import VOCABULARY

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    config = transformers.BertConfig(vocab_size=len(VOCABULARY), **SIZES)
    transformers.BertModel(config).save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    (directory / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    return directory


def tables(directory):
    """Rows whose words say which labels they have."""
    names = {"one": "good", "both": "good|bad", "none": ""}
    for file in ("train.csv", "dev.csv"):
        with (directory / file).open("w", newline="") as stream:
            rows = [
                (f"{name} {number}", label) for number in range(6) for name, label in names.items()
            ]
            csv.writer(stream).writerows([("text", "label"), *rows])
    settings = {"text_column": "text", "multi_label": True, "label_separator": "|"}
    return ["--task=table", f"--table={json.dumps(settings)}", "train.csv", "dev.csv"]


def words(directory):
    tagging_files.write_data(directory)
    return ["--task=ner", "train.txt", "dev.txt"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("data", [tables, words])
def test_both_train_and_are_scored(data, model_dir, tmp_path):
    *task, train, dev = data(tmp_path)
    given = [
        *task,
        f"--train_file={tmp_path / train}",
        f"--dev_file={tmp_path / dev}",
        f"--model_dir={model_dir}",
        f"--output_dir={tmp_path / 'runs'}",
        f"--json={tmp_path / 'results.json'}",
        "--seeds=1,2",
        "--epochs=1",
        "--batch_size=8",
        "--seq_length=16",
        "--threads=1",
    ]
    run("-m", fine_tuning.__name__, *given)
    results = json.loads((tmp_path / "results.json").read_text())
    scores = {each["subject"]: each["config"] for each in results if each["name"] == "score"}
    assert set(scores) == {"ours", "transformers"}
    ratio = [each for each in results if each["name"].startswith("sequences_per_second, ours to")]
    assert ratio[0]["value"] > 0
    # Finished trainings are kept.
    (tmp_path / train).write_text("none")
    assert "seed 1:" not in run("-m", fine_tuning.__name__, *given).stdout


def test_settings_of_a_table_are_json(model_dir, tmp_path):
    tables(tmp_path)
    files = [f"--{name}_file={tmp_path / name}.csv" for name in ("train", "dev")]
    given = [*files, f"--model_dir={model_dir}", f"--output_dir={tmp_path}", "--table=text"]
    done = run("-m", fine_tuning.__name__, "--task=table", *given, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --table=text is not a JSON object")
