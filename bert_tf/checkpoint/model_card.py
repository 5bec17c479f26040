"""A model card: the README.md of a directory for Hugging Face's hub.

It lists what the model directory records, and nothing else. Language and licence, which no file
records, are left as comments to fill in.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bert_tf.checkpoint.formats import ConfiguredSource
from bert_tf.model_directory.directory import HUGGINGFACE_CONFIG_NAME
from bert_tf.util.digest import DIGEST_KEY
from bert_tf.util.files import atomic_open, read_json_object

# Title and value; rows without a value are left out.
Rows = Iterator[tuple[str, Any]]

CARD_NAME = "README.md"
_RESULTS_NAME = "eval_results.json"

# The end of a class name in transformers, which AutoModel's classes have in common: the hub's task.
_TASKS = {
    "ForQuestionAnswering": "question-answering",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForMultipleChoice": "multiple-choice",
    "ForMaskedLM": "fill-mask",
    "ForPreTraining": "fill-mask",
    "ForNextSentencePrediction": None,
    "": "feature-extraction",  # of the network without a head
}
# The hub's metrics that eval_results.json names alike, after "eval_".
_METRICS = ("accuracy", "f1", "precision", "recall", "exact_match", "matthews_correlation")
_NO_SCORES = ("global_step", "predict_sequences_per_second", "total")
_LABELLED_WORDS = """
# A word has the label of its first token. The others were not trained, so that
# aggregation_strategy="simple", which uses theirs, too, cuts words.
from transformers import pipeline
words = pipeline(
    "token-classification", model=model, tokenizer=tokenizer, aggregation_strategy="first"
)"""
# Characters that may be markup or begin a link; an underscore within a word is neither.
_MARKUP = re.compile(r"[\\`*\[\]<>&|~#$@]|:(?=//)|(?<=www)\.|(?<![^\W_])_|_(?![^\W_])")

# Rows on training: their titles, and where they are in run.json's ledger.
_TRAINING = {
    "Task": ("data", "task"),
    "Training records": ("data", "train_records"),
    "SHA-256 of the training data": ("data", DIGEST_KEY),
    "Masking": ("data", "masking"),
    "Updates": ("steps", "last_step"),
    "Sequences per update (global batch)": ("batch", "global_batch"),
    "Sequences in all": ("consumption", "sequences"),
    "Optimizer": ("optimizer", "name"),
    "Peak learning rate": ("learning_rate", "peak"),
    "Schedule of the learning rate": ("learning_rate", "schedule"),
    "Weight decay": ("optimizer", "weight_decay"),
    "Precision": ("precision", "policy"),
    "Seed": ("data", "seed"),
}
_DATA_FLAGS = ("input_file", "train_file", "data_dir", "eval_file", "predict_file")


def write_model_card(directory: Path, source: ConfiguredSource, *, name: str) -> None:
    """Writes the card of a directory that :func:`huggingface.write_huggingface` has filled.

    A card that stands next to the weights is copied instead. ``name`` is the model's.
    """
    own = Path(source.path).parent / CARD_NAME
    content = own.read_text(encoding="utf-8", errors="replace") if own.is_file() else ""
    # A card begins with its metadata, unlike any other README.
    if content.partition("\n")[0].rstrip() != "---":
        config = read_json_object(directory / HUGGINGFACE_CONFIG_NAME, what="configuration")
        content = "".join(f"{line}\n" for line in _card(config, source, name))
    with atomic_open(directory / CARD_NAME) as file:
        file.write(content)


def _card(config: Mapping[str, Any], source: ConfiguredSource, name: str) -> Iterator[str]:
    class_name = config["architectures"][0]
    ending = next(end for end in _TASKS if class_name.endswith(end))
    # The hub has no task for Electra's, which tells replaced tokens from original ones.
    task = _TASKS["" if class_name == "ElectraForPreTraining" else ending]
    record = source.files.run_record.content if source.files.run_record else {}
    flags = record["flags"] if isinstance(record.get("flags"), dict) else {}
    base = Path(str(flags.get("init_checkpoint") or "")).name
    scores = _scores(source)
    metrics = [metric for metric in _METRICS if scores.keys() & {metric, f"eval_{metric}"}]
    # The front matter is YAML, which reads strings that are quoted as in JSON.
    yield from ("---", "library_name: transformers")
    yield from ([f"pipeline_tag: {task}"] if task else [])
    yield from ("tags:", f"- {config['model_type']}", "- bert_tf")
    yield from ("# language: en", "# license: apache-2.0")
    yield from ([f"base_model: {json.dumps(_line(base), ensure_ascii=False)}"] if base else [])
    yield from (["metrics:", *(f"- {metric}" for metric in metrics)] if metrics else [])
    yield from ("---", "", f"# {_text(name)}", "", f"`{class_name}`")
    yield from _table("Network", _about_network(config, source))
    yield from ("", "## Use", "", "```python")
    yield f"from transformers import AutoModel{ending}, AutoTokenizer"
    yield f"tokenizer = AutoTokenizer.from_pretrained({json.dumps(name)})"
    yield f"model = AutoModel{ending}.from_pretrained({json.dumps(name)})"
    yield from ([_LABELLED_WORDS] if ending == "ForTokenClassification" else [])
    yield "```"
    if record:
        yield from _table("Training", _about_training(record, flags, base, _step(source)))
    yield from _table("Evaluation", iter(scores.items()))


def _about_network(config: Mapping[str, Any], source: ConfiguredSource) -> Rows:
    yield "Layers", source.config.num_hidden_layers
    yield "Width", source.config.hidden_size
    yield "Attention heads", source.config.num_attention_heads
    yield "Longest sequence", source.config.max_position_embeddings
    files = source.files.tokenizer_files
    if files.file is not None:
        tokenizer = files.load()
        casing = {True: ", lower-cased", False: ", cased", None: ""}[files.do_lower_case]
        yield "Vocabulary", f"{tokenizer.vocab_size} entries, {tokenizer.kind}{casing}"
    labels = map(_line, config.get("id2label", {}).values())
    yield "Classes, in the order of outputs", ", ".join(labels) or None


def _about_training(
    record: Mapping[str, Any], flags: Mapping[str, Any], base: str, step: int | None
) -> Rows:
    for name in _DATA_FLAGS:
        value = flags.get(name)
        if isinstance(value, str) and value:
            yield f"--{name}", ", ".join(Path(part).name for part in value.split(","))
    yield "Started from", base or None
    yield "Updates until these weights", step
    for title, (section, name) in _TRAINING.items():
        yield title, record["ledger"].get(section, {}).get(name)
    versions = record.get("versions")
    if isinstance(versions, dict):
        yield "Programs", ", ".join(f"{program} {version}" for program, version in versions.items())


def _scores(source: ConfiguredSource) -> dict[str, float]:
    """The results of the last evaluation, if it was that of these weights."""
    path = Path(source.path).parent / _RESULTS_NAME
    step = _step(source)
    results = read_json_object(path, what="evaluation results") if path.is_file() else {}
    if step is None or results.get("global_step") != step:
        return {}
    return {
        name: value
        for name, value in results.items()
        if name not in _NO_SCORES and isinstance(value, (int, float)) and math.isfinite(value)
    }


def _step(source: ConfiguredSource) -> int | None:
    """The number of updates in the name of a run's checkpoint."""
    number = Path(source.path).name.rpartition("ckpt-")[2]
    return int(number) if number.isdecimal() else None


def _table(title: str, rows: Rows) -> Iterator[str]:
    """A heading, and a table of the rows that have a value; nothing without any."""
    lines = [
        f"| {_text(name)} | {_text(f'{value:g}' if isinstance(value, float) else str(value))} |"
        for name, value in rows
        if value is not None
    ]
    if lines:
        yield from ("", f"## {title}", "", "| | |", "|---|---|", *lines)


def _line(text: str) -> str:
    """A text on one line of characters that are shown, as YAML and Markdown need it."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _text(text: str) -> str:
    """A text as Markdown that shows it as it is."""
    return _MARKUP.sub(r"\\\g<0>", _line(text))
