"""The card of a converted model: what its directory records, read by huggingface_hub."""

import json

import pytest
from huggingface_hub import ModelCard

from bert_tf.checkpoint.formats import open_source
from bert_tf.checkpoint.tensorflow_file import TensorflowCheckpoint, write_checkpoint
from bert_tf.commands.convert import convert
from bert_tf.model_directory.classes import SINGLE_LABEL, Classes
from tests.helpers.model_records import set_record
from tests.unit.checkpoint.tiny_models import save_google

RECORD = {
    "ledger": {
        "batch": {"global_batch": 256, "batch_ramp": None},
        "steps": {"last_step": 9, "warmup_steps": 2},
        "learning_rate": {"peak": 5e-05, "schedule": "polynomial"},
        "precision": {"policy": "bf16"},
        "data": {"task": "own texts", "train_records": 4, "sha256": "c84b6b", "masking": "a|b"},
    },
    "flags": {
        "init_checkpoint": '/home/me/an "old" model',
        "train_file": "/home/me/a.csv,b.csv",
        "eval_file": None,
    },
    "versions": {"bert_tf": "0.1.0"},
}
SCORES = {"eval_accuracy": 0.75, "eval_loss": None, "predict_sequences_per_second": 3.0}


def make(directory, class_name, *, record=None, scores=None):
    """A run's directory with one checkpoint, of step 9."""
    save_google(directory, class_name)
    source = TensorflowCheckpoint(str(directory / "bert_model.ckpt"))
    arrays = {name: source.read(name) for name in source.entries}
    for path in directory.glob("bert_model.ckpt.*"):
        path.unlink()
    write_checkpoint(str(directory / "model.ckpt-9"), arrays)
    if record is not None:
        config = json.loads((directory / "bert_config.json").read_text())
        (directory / "run.json").write_text(json.dumps({**record, "model": config}))
    if scores is not None:
        (directory / "eval_results.json").write_text(json.dumps(scores))
    return directory


def card_of(source, output_dir):
    lines = convert(open_source(source), output_dir, "huggingface")
    assert "README.md" in lines[-1]
    return ModelCard((output_dir / "README.md").read_text(encoding="utf-8"))


def test_a_card_states_what_the_directory_records(tmp_path):
    scores = {**SCORES, "global_step": 9}
    source = make(tmp_path / "run", "BertForSequenceClassification", record=RECORD, scores=scores)
    set_record(source, classes=Classes.of_texts(SINGLE_LABEL, ("no", "yes", "don't know")))
    card = card_of(source, tmp_path / "my model")
    assert card.data.to_dict() == {
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "tags": ["bert", "bert_tf"],
        "base_model": 'an "old" model',
        "metrics": ["accuracy"],
    }
    lines = card.text.splitlines()
    assert "# my model" in lines
    for row in (
        "| Layers | 2 |",
        "| Vocabulary | 40 entries, wordpiece, cased |",
        "| Classes, in the order of outputs | no, yes, don't know |",
        "| --train_file | a.csv, b.csv |",
        "| Task | own texts |",
        "| Masking | a\\|b |",
        "| Updates until these weights | 9 |",
        "| Sequences per update (global batch) | 256 |",
        "| Peak learning rate | 5e-05 |",
        "| Precision | bf16 |",
        "| Programs | bert_tf 0.1.0 |",
        "| eval_accuracy | 0.75 |",
    ):
        assert row in lines
    assert "home" not in card.content
    assert "None" not in card.content
    assert "per_second" not in card.content


@pytest.mark.parametrize(
    ("class_name", "task"),
    [
        ("BertForQuestionAnswering", "question-answering"),
        ("BertForTokenClassification", "token-classification"),
        ("DistilBertForMaskedLM", "fill-mask"),
        ("BertForPreTraining", "fill-mask"),
        ("BertForNextSentencePrediction", None),
        ("BertModel", "feature-extraction"),
    ],
)
def test_without_records_a_card_has_only_the_network(tmp_path, class_name, task):
    card = card_of(make(tmp_path / "run", class_name), tmp_path / "out")
    assert card.data.to_dict().get("pipeline_tag") == task
    assert card.data.base_model is None
    lines = card.text.splitlines()
    assert [line for line in lines if line.startswith("## ")] == ["## Network"]
    assert any("aggregation_strategy" in line for line in lines) == (
        class_name == "BertForTokenClassification"
    )


HOSTILE = (
    "a_b __c__ *d* [e](https://e.org) <script>f</script> &lt; `g` ``h` | \\ ~~i~~ # j: $k$ @l",
    "# a\n---\nlicense: mit\n---\r\n| b |\u2028\x85\x7f\ufeff",
    "`", "``a", "-", "_", "1. www.b.org", '"c": !d {e} %f',
)  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_shown_as_they_are(tmp_path, name):
    markdown_it = pytest.importorskip("markdown_it")
    record = {**RECORD, "ledger": {"data": {"task": name}}, "flags": {"init_checkpoint": name}}
    scores = {**SCORES, f"eval_f1 {name}": 0.5, "global_step": 9}
    source = make(tmp_path / "run", "BertForSequenceClassification", record=record, scores=scores)
    set_record(source, classes=Classes.of_texts(SINGLE_LABEL, ("no", name, "last")))
    out = tmp_path / name.replace("/", "").strip()
    card = card_of(source, out)
    shown = " ".join("".join(c if c.isprintable() else " " for c in name).split())
    base = shown.rpartition("/")[2]
    assert card.data.base_model == base
    assert set(card.data.to_dict()) <= {
        "library_name",
        "pipeline_tag",
        "tags",
        "base_model",
        "metrics",
    }
    tokens = (
        markdown_it.MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(card.text)
    )
    texts = []
    for token in tokens:
        kinds = {child.type for child in token.children or ()}
        assert kinds <= {"text", "code_inline", "text_special"}, token.content
        texts.append("".join(child.content for child in token.children or ()))
    title = " ".join("".join(c if c.isprintable() else " " for c in out.name).split())
    assert title in texts
    assert {f"no, {shown}, last", base, shown, f"eval_f1 {shown}"} <= set(texts)


def test_scores_of_other_weights_are_left_out(tmp_path):
    source = make(tmp_path / "run", "BertModel", scores={**SCORES, "global_step": 8})
    card = card_of(source, tmp_path / "out")
    assert card.data.metrics is None
    assert "accuracy" not in card.content


def test_the_card_next_to_the_weights_is_kept(tmp_path):
    source = make(tmp_path / "run", "BertModel", record=RECORD)
    (source / "README.md").write_text("# Not a card\n")
    assert "Not a card" not in card_of(source, tmp_path / "first").content
    own = "---\nlicense: mit\n---\n\n# Mine\n"
    (source / "README.md").write_text(own)
    card_of(source, tmp_path / "second")
    assert (tmp_path / "second/README.md").read_text() == own
