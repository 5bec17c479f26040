"""Writes a model as a directory that Hugging Face's transformers loads whole.

Its model card, README.md, lists what the model directory records, and nothing else. Language and
licence, which no file records, are left there as comments to fill in.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file

from bert_tf.checkpoint import names
from bert_tf.checkpoint.formats import Source
from bert_tf.model.bert import WORD_EMBEDDINGS
from bert_tf.model.config import DISTILBERT_KEYS, BertConfig
from bert_tf.model_directory.classes import (
    CHOICE,
    MULTI_LABEL,
    SINGLE_LABEL,
    THRESHOLD_KEY,
    WORD_LABELS,
)
from bert_tf.model_directory.directory import HUGGINGFACE_CONFIG_NAME
from bert_tf.model_directory.record import record_of, write_record, write_tokenizer_config
from bert_tf.text.tokenizer import TOKENIZER_JSON_NAME
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.text.tokenizer_json import tokenizer_json
from bert_tf.util.digest import DIGEST_KEY
from bert_tf.util.errors import UserError
from bert_tf.util.files import atomic_open, read_json_object, write_json

if TYPE_CHECKING:
    from bert_tf.model_directory.classes import Classes


# If there are several heads, the first determines the class name, after "Bert" and the like.
_ARCHITECTURES: tuple[tuple[set[str], str], ...] = (
    ({names.DISCRIMINATOR}, "ForPreTraining"),
    ({names.GENERATOR_MASKED_LM}, "ForMaskedLM"),
    ({names.SQUAD}, "ForQuestionAnswering"),
    ({names.CLASSES}, "ForSequenceClassification"),
    ({names.MASKED_LM, names.NEXT_SENTENCE}, "ForPreTraining"),
    ({names.MASKED_LM}, "ForMaskedLM"),
    ({names.NEXT_SENTENCE}, "ForNextSentencePrediction"),
    (set(), "Model"),
)
# Kind of classes -> the class of a classification head that is not for whole texts.
_CLASSIFIERS = {WORD_LABELS: "ForTokenClassification", CHOICE: "ForMultipleChoice"}

# All versions of transformers know "gelu_new"; their "gelu" is the exact one.
_HUGGINGFACE_ACTIVATIONS = {"gelu_erf": "gelu", "gelu_tanh": "gelu_new"}

# transformers' class for a tokenizer.json as it is. From version 5 on, its BertTokenizer takes no
# more than the entries from that file, and its own rules give other ids for some characters.
_TOKENIZER_CLASS = "PreTrainedTokenizerFast"


def write_huggingface(
    directory: Path, weights: Mapping[str, np.ndarray], source: Source
) -> list[str]:
    """Writes ``config.json``, weights, vocabulary and tokenizer; returns notes for the user.

    ``directory`` exists and is empty; ``weights`` are the float32 arrays of ``source``. Raises
    UserError if transformers has no class for such a network, or the vocabulary is malformed;
    OSError if the disk is full.
    """
    naming = _naming_for(source.config, names.heads_of(weights))
    _check_place(naming, names.heads_of(weights), source)
    rows = {name: naming.by_google(name) for name in weights}
    heads = names.heads_of(name for name, row in rows.items() if row)
    tokenizer_files, on_casing = _with_casing(source.files.tokenizer_files)
    bias = weights.get(f"{names.CLASSES}output_bias")
    settings = _settings(source, heads, None if bias is None else len(bias))
    padding, on_tokenizer = _write_tokenizer(directory, tokenizer_files, source.config)
    notes = [*on_casing, *on_tokenizer]
    settings["pad_token_id"] = padding
    if naming is names.ELECTRA:
        settings["embedding_size"] = weights[WORD_EMBEDDINGS].shape[1]
    write_json(directory / HUGGINGFACE_CONFIG_NAME, settings)
    write_record(record_of(directory, source.config, tokenizer_files, **source.files.facts))
    arrays = {}
    for name, row in rows.items():
        if row is not None:
            # Names in a network without a head have no prefix.
            key = row.huggingface if heads else row.huggingface[len(naming.prefix) :]
            values = weights[name].T if row.transposed else weights[name]
            arrays[key] = np.ascontiguousarray(values)
    weights_file = directory / "model.safetensors"
    save_file(arrays, weights_file, metadata={"format": "pt"})
    # The library makes the file private; copy the mode of another file, which has the umask's.
    shutil.copymode(directory / HUGGINGFACE_CONFIG_NAME, weights_file)
    left_out = [name for name, row in rows.items() if row is None]
    if not left_out:
        return notes
    return [
        f"{len(left_out)} of these left out, since DistilBERT, Hugging Face's form of a network "
        f"without token types, has no pooler: {', '.join(left_out)}",
        *notes,
    ]


def _naming_for(config: BertConfig, heads: set[str]) -> names.Naming:
    """Hugging Face's naming of a network; its BERT classes always have token types."""
    if heads & {names.DISCRIMINATOR, names.GENERATOR_MASKED_LM}:
        return names.ELECTRA
    return names.BERT if config.type_vocab_size else names.DISTILBERT


def _check_place(naming: names.Naming, heads: set[str], source: Source) -> None:
    if naming is names.ELECTRA and not source.config.type_vocab_size:
        raise UserError(
            "the network has no token types (type_vocab_size 0), and Hugging Face's ELECTRA always "
            "has them; convert it to another format."
        )
    if naming is names.DISTILBERT and names.CLASSES in heads and source.files.labels is None:
        raise UserError(
            "the checkpoint has a text classification head but no token types, and DistilBERT, "
            "Hugging Face's form of a network without them, has no pooler for that head; convert "
            "it to another format."
        )


def _settings(source: Source, heads: set[str], num_labels: int | None) -> dict[str, Any]:
    """The content of ``config.json`` for a network with these heads, without padding."""
    naming = _naming_for(source.config, heads)
    settings = source.config.to_dict()
    activation = source.config.hidden_act
    settings["hidden_act"] = _HUGGINGFACE_ACTIVATIONS.get(activation, activation)
    if naming is names.DISTILBERT:
        del settings["type_vocab_size"]
        settings = {DISTILBERT_KEYS.get(name, name): value for name, value in settings.items()}
        # The position table is stored, whether it was computed or trained.
        settings["sinusoidal_pos_embds"] = False
    else:
        settings.update(layer_norm_eps=1e-12, position_embedding_type="absolute")
    class_name = next(name for needed, name in _ARCHITECTURES if needed <= heads)
    if class_name == "ForSequenceClassification" and source.files.classes is not None:
        class_name = _CLASSIFIERS.get(source.files.classes.kind, class_name)
    settings.update(
        model_type=naming.model_type,
        architectures=[f"{naming.class_prefix}{class_name}"],
        torch_dtype="float32",
    )
    if num_labels is not None and class_name != _CLASSIFIERS[CHOICE]:
        settings.update(_about_classes(source.files.classes, num_labels))
    return settings


def _about_classes(classes: Classes | None, num_labels: int) -> dict[str, Any]:
    """The names of the classes, and what the outputs mean if they are not one of them."""
    known = classes.labels if classes else ()
    if len(known) == num_labels:
        labels = {str(index): label for index, label in enumerate(known)}
    else:
        labels = {str(index): f"LABEL_{index}" for index in range(num_labels)}
    settings: dict[str, Any] = {
        "id2label": labels,
        "label2id": {label: int(index) for index, label in labels.items()},
    }
    if classes and not classes.of_words and classes.kind != SINGLE_LABEL:
        settings["problem_type"] = classes.kind
        if classes.kind == MULTI_LABEL and len(set(classes.thresholds)) == 1:
            settings[THRESHOLD_KEY] = classes.thresholds[0]
    return settings


def _with_casing(files: TokenizerFiles) -> tuple[TokenizerFiles, list[str]]:
    """The vocabulary with its casing, and a note if that was inferred."""
    if files.file is None or files.do_lower_case is not None:
        return files, []
    files = files.with_casing(None)
    return files, [
        "nothing records whether the vocabulary is lower-cased; it is taken as "
        f"{'lower-cased' if files.do_lower_case else 'cased'} (--do_lower_case or "
        "--nodo_lower_case decides it)"
    ]


def _write_tokenizer(
    directory: Path, files: TokenizerFiles, config: BertConfig
) -> tuple[int, list[str]]:
    """Writes the vocabulary's files, and returns the id of padding and notes for the user."""
    segments = ["token_type_ids"] if config.type_vocab_size else []
    settings: dict[str, Any] = {
        "tokenizer_class": _TOKENIZER_CLASS,
        "model_max_length": config.max_position_embeddings,
        # The class's default differs between versions of transformers.
        "model_input_names": ["input_ids", *segments, "attention_mask"],
    }
    padding, notes = 0, []
    if files.file is not None:
        tokenizer = files.load()
        padding = tokenizer.pad_id
        for role in ("pad", "unk", "cls", "sep", "mask"):
            index = getattr(tokenizer, f"{role}_id")
            settings[f"{role}_token"] = tokenizer.convert_ids_to_tokens([index])[0]
        if files.vocab_file is not None:
            settings.update(strip_accents=None, tokenize_chinese_chars=True)
        files.copy_to(directory)
        content, reason = tokenizer_json(files)
        if content is not None:
            write_json(directory / TOKENIZER_JSON_NAME, content)
        elif reason:
            notes.append(
                f"warning: {TOKENIZER_JSON_NAME} is left out, since it cannot give the ids of this "
                f"SentencePiece model: {reason}; encode texts by other means"
            )
    write_tokenizer_config(directory, files, **settings)
    return padding, notes


CARD_NAME = "README.md"
_RESULTS_NAME = "eval_results.json"

# The end of a class name in transformers -> the hub's task.
_TASKS = {
    "ForQuestionAnswering": "question-answering",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForMultipleChoice": "multiple-choice",
    "ForMaskedLM": "fill-mask",
    "BertForPreTraining": "fill-mask",
    "ForNextSentencePrediction": None,
    "": "feature-extraction",  # no head, or ELECTRA's, for which the hub has no task
}
# The hub's metrics that eval_results.json names alike, after "eval_".
_METRICS = ("accuracy", "f1", "precision", "recall", "exact_match", "matthews_correlation")
_NO_SCORES = ("global_step", "predict_sequences_per_second", "total")
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


def write_model_card(directory: Path, source: Source, *, name: str) -> None:
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


def _card(config: Mapping[str, Any], source: Source, name: str) -> Iterator[str]:
    class_name = config["architectures"][0]
    task = next(task for end, task in _TASKS.items() if class_name.endswith(end))
    record = source.files.run_record.content if source.files.run_record else {}
    flags = record["flags"] if isinstance(record.get("flags"), dict) else {}
    base = Path(str(flags.get("init_checkpoint") or "")).name
    number = Path(source.path).name.rpartition("ckpt-")[2]
    step = int(number) if number.isdecimal() else None
    scores = _scores(source, step)
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
    if record:
        yield from _table("Training", _about_training(record, flags, base, step))
    yield from _table("Evaluation", scores)


def _about_network(config: Mapping[str, Any], source: Source) -> dict[str, Any]:
    rows: dict[str, Any] = {
        "Layers": source.config.num_hidden_layers,
        "Width": source.config.hidden_size,
        "Attention heads": source.config.num_attention_heads,
        "Longest sequence": source.config.max_position_embeddings,
    }
    files = source.files.tokenizer_files
    if files.file is not None:
        tokenizer = files.load()
        casing = {True: ", lower-cased", False: ", cased", None: ""}[files.do_lower_case]
        rows["Vocabulary"] = f"{tokenizer.vocab_size} entries, {tokenizer.kind}{casing}"
    if config["architectures"][0].endswith("ForTokenClassification"):
        # Labels of other tokens, which aggregation_strategy="simple" uses, were not trained.
        rows["Label of a word"] = 'its first token\'s: aggregation_strategy="first"'
    labels = ", ".join(map(_line, config.get("id2label", {}).values()))
    return {**rows, "Classes, in the order of outputs": labels or None}


def _about_training(
    record: Mapping[str, Any], flags: Mapping[str, Any], base: str, step: int | None
) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for name in _DATA_FLAGS:
        value = flags.get(name)
        if isinstance(value, str) and value:
            rows[f"--{name}"] = ", ".join(Path(part).name for part in value.split(","))
    rows |= {"Started from": base or None, "Updates until these weights": step}
    for title, (section, name) in _TRAINING.items():
        rows[title] = record["ledger"].get(section, {}).get(name)
    versions = record.get("versions")
    if isinstance(versions, dict):
        rows["Programs"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    return rows


def _scores(source: Source, step: int | None) -> dict[str, float]:
    """The results of the last evaluation, if it was that of these weights, of ``step``."""
    path = Path(source.path).parent / _RESULTS_NAME
    results = read_json_object(path, what="evaluation results") if path.is_file() else {}
    if step is None or results.get("global_step") != step:
        return {}
    return {
        name: value
        for name, value in results.items()
        if name not in _NO_SCORES and isinstance(value, (int, float)) and math.isfinite(value)
    }


def _table(title: str, rows: Mapping[str, Any]) -> Iterator[str]:
    """A heading, and a table of the rows that have a value; nothing without any."""
    lines = [
        f"| {_text(name)} | {_text(f'{value:g}' if isinstance(value, float) else str(value))} |"
        for name, value in rows.items()
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
