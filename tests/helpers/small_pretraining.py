"""Small real data and a tiny network for runs of the real programs, shared by several rooms."""

from __future__ import annotations

import ast
import fcntl
import inspect
import json
import os
import pkgutil
from pathlib import Path

import pytest

from tests.helpers.programs import run

GEOMETRY = ["--max_seq_length=32", "--max_predictions_per_seq=5"]
VOCAB_SIZE = 600


def stdlib_documentation(least_bytes: int) -> str:
    """Paragraphs of real English: docstrings of the standard library, a document a module."""
    documents = []
    for module in sorted(m.name for m in pkgutil.iter_modules() if not m.name.startswith("_")):
        source = Path(inspect.__file__).with_name(f"{module}.py")
        if source.is_file():
            documents += _docstrings(source)
        if sum(map(len, documents)) > least_bytes:
            break
    return "\n\n".join(documents) + "\n"


def _docstrings(source):
    tree = ast.parse(source.read_text(encoding="utf-8"))
    kinds = (ast.Module, ast.FunctionDef, ast.ClassDef)
    found = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)]
    text = "\n".join(" ".join(part.split()) for part in found if part)
    return [text] if len(text) > 200 else []


def make_data(text_file: Path, directory: Path) -> None:
    """Records with stored masks, by the pipeline that a user runs."""
    run(
        "-m",
        "data_prep.pipeline",
        f"--input_file={text_file}",
        f"--output_dir={directory}",
        f"--vocab_size={VOCAB_SIZE}",
        "--dupe_factor=1",
        *GEOMETRY,
    )


def shared_data(factory: pytest.TempPathFactory, least_bytes: int = 100_000) -> Path:
    """Records of so much documentation, made once for all files and processes of a test run.

    They may only be read. The text is ``my_text.txt`` beside the directory that is returned.
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    directory = base / f"documentation_{least_bytes}" / "data"
    with open(base / "documentation.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            directory.parent.mkdir(exist_ok=True)
            text_file = directory.with_name("my_text.txt")
            text_file.write_text(stdlib_documentation(least_bytes), encoding="utf-8")
            make_data(text_file, directory)
    return directory


def write_bert_config(path: Path, *, layers: int = 1) -> None:
    """The configuration of a tiny network for these records.

    One layer is enough where a program is tested: most of its time goes into building its graph.
    """
    config = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 32,
    }
    path.write_text(json.dumps(config))


def flags_of_a_short_run(data: Path, bert_config: Path) -> list[str]:
    """Flags of run_pretraining.py for six updates; later ones win."""
    return [
        f"--bert_config_file={bert_config}",
        f"--input_file={data / 'records' / 'train'}",
        f"--eval_file={data / 'records' / 'heldout'}",
        *GEOMETRY,
        "--precision=fp32",  # what is compared must not depend on what this machine is fast at
        "--train_batch_size=8",
        "--eval_batch_size=16",
        "--num_train_steps=6",
        "--num_warmup_steps=2",
        "--learning_rate=1e-3",
        "--save_checkpoints_steps=3",
        "--display_loss_steps=1",
    ]
