"""Fine-tunes on named entities here and as transformers' run_ner.py does, from the same weights.

    python -m benchmarks.studies.tagging --model_dir=all-MiniLM-L6-v2 --train_file=train.conll \\
        --dev_file=dev.conll --output_dir=tagging --json=tagging.json

``ours`` is run_ner.py with its defaults. ``transformers`` is the recipe of the library's run_ner.py
without the bookkeeping of its Trainer: labels at first pieces, batches in random order that are
padded to their longest sequence, AdamW without weight decay, a rate that falls linearly from the
first update, gradients clipped to a norm of 1, float32. ``transformers-malloc`` is the same with
glibc keeping large blocks. All have the learning rate, batches, epochs and length of the flags.

For every seed, programs take turns, each in a process of its own; finished ones are kept, so that
more seeds can be added. Sequences per second are those of the updates after start-up. Both
programs' labels are scored by the same rules, conlleval's.

docs/measurements/tagging.md has the results.
"""

from __future__ import annotations

import dataclasses
import itertools
import resource
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from benchmarks.machine import machine_line
from benchmarks.results import Result, print_table, ratio_result, spread_result
from benchmarks.script import (
    REQUIRED,
    known_names,
    run_benchmark,
    shared_flags,
    threads_from_flags,
    whole_numbers,
)
from benchmarks.speed.load import ForeignLoad
from benchmarks.speed.process import Found, run_in_process, run_script, script_command
from benchmarks.speed.subjects import MALLOC, Subject, by_name
from benchmarks.speed.turns import rotated
from bert_tf.tasks.tagging.chunks import count_entities, total
from bert_tf.tasks.tagging.formats import Sentence, read_tagged
from bert_tf.util.errors import UserError
from bert_tf.util.files import make_output_dir, read_json, require_file, write_json

_MODULE = "benchmarks.studies.tagging"
_PEER_FUNCTION = "train_transformers"
_CLIP_NORM = 1.0  # the Trainer's
_NO_LABEL = -100
_PREDICT_BATCH_SIZE = 8

SUBJECTS = by_name(
    Subject("ours", _MODULE),
    Subject("transformers", _MODULE),
    Subject("transformers-malloc", _MODULE, environment=MALLOC),
)


@dataclasses.dataclass(frozen=True)
class TaggingJob:
    """A training; a peer's process receives it as JSON.

    Attributes:
      model_dir: the weights, in Hugging Face's format.
      train_file, dev_file: words and labels.
      learning_rate, batch_size, epochs, seq_length: of the recipe.
      seed: of the head, the order and dropout.
      threads: cores to use.
    """

    model_dir: str
    train_file: str
    dev_file: str
    learning_rate: float
    batch_size: int
    epochs: float
    seq_length: int
    seed: int
    threads: int


def train_ours(job: TaggingJob, output_dir: Path) -> Found:
    """A run of run_ner.py: F1 on the development set, and the rate of its updates."""
    given = {
        "init_checkpoint": job.model_dir,
        "train_file": job.train_file,
        "eval_file": job.dev_file,
        "do_train": True,
        "do_eval": True,
        "learning_rate": job.learning_rate,
        "train_batch_size": job.batch_size,
        "num_train_epochs": job.epochs,
        "max_seq_length": job.seq_length,
        "seed": job.seed,
        "num_threads": job.threads,
        "keep_best": False,
        "output_dir": output_dir,
    }
    output = output_dir.with_name(f"{output_dir.name}.txt")
    if run_script(script_command("run_ner.py", given), output):
        raise UserError(f"run_ner.py failed; see {output}.")
    results = read_json(output_dir / "eval_results.json", what="results")
    record = read_json(output_dir / "run.json", what="run record")
    return {
        "f1": results["eval_f1"],
        "sequences_per_second": record["training"]["sequences_per_second"],
    }


def train_transformers(request: Mapping[str, Any]) -> dict[str, Any]:
    """A training with the recipe of transformers' run_ner.py, with the findings of ours."""
    import torch
    import transformers

    from benchmarks.speed.huggingface import parameter_groups

    names = [field.name for field in dataclasses.fields(TaggingJob)]
    job = TaggingJob(**{name: request[name] for name in names})
    transformers.set_seed(job.seed)
    torch.set_num_threads(job.threads)
    train, dev = (
        read_tagged(Path(path), flag=flag, needs_labels=True)
        for path, flag in ((job.train_file, "train_file"), (job.dev_file, "dev_file"))
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(job.model_dir, use_fast=True)
    model = transformers.AutoModelForTokenClassification.from_pretrained(
        job.model_dir, num_labels=len(train.labels)
    ).train()
    rows = _encoded(tokenizer, train.sentences, train.labels, job.seq_length)
    pad = transformers.DataCollatorForTokenClassification(tokenizer)
    updates_per_epoch = -(-len(rows) // job.batch_size)
    updates = round(job.epochs * updates_per_epoch)
    optimizer = torch.optim.AdamW(
        parameter_groups(model, weight_decay=0.0), lr=job.learning_rate, fused=True
    )
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 0, updates)
    sequences, started = 0, 0.0
    for number, chosen in enumerate(itertools.islice(_batches(len(rows), job.batch_size), updates)):
        model(**pad([rows[index] for index in chosen])).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP_NORM)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if number:
            sequences += len(chosen)
        else:
            started = time.monotonic()
    seconds = time.monotonic() - started
    predicted = _predicted(model.eval(), tokenizer, pad, dev.sentences, train.labels, job)
    counts = count_entities((sentence.labels for sentence in dev.sentences), predicted)
    return {"f1": total(counts.values()).scores["f1"], "sequences_per_second": sequences / seconds}


def _encoded(
    tokenizer: Any, sentences: Sequence[Sentence], labels: Sequence[str], length: int
) -> list[dict[str, list[int]]]:
    """Cuts sentences off at a length; a word's label is at its first piece."""
    encoded = tokenizer(
        [sentence.words for sentence in sentences],
        is_split_into_words=True,
        truncation=True,
        max_length=length,
    )
    numbers = {label: number for number, label in enumerate(labels)}
    rows = []
    for index, sentence in enumerate(sentences):
        words = encoded.word_ids(index)
        first = [word is not None and word != before for before, word in zip([None, *words], words)]
        of_tokens = [
            numbers.get(sentence.labels[word], _NO_LABEL) if is_first else _NO_LABEL
            for word, is_first in zip(words, first)
        ]
        rows.append({**{name: encoded[name][index] for name in encoded}, "labels": of_tokens})
    return rows


def _batches(num_rows: int, batch_size: int) -> Iterator[list[int]]:
    """Endless epochs, each in a new order."""
    import torch

    while True:
        for chosen in torch.randperm(num_rows).split(batch_size):
            yield chosen.tolist()


def _predicted(
    model: Any,
    tokenizer: Any,
    pad: Any,
    sentences: Sequence[Sentence],
    labels: Sequence[str],
    job: TaggingJob,
) -> list[list[str]]:
    """The labels of each sentence; words without a first piece in the sequence have O."""
    import torch

    found = []
    for first in range(0, len(sentences), _PREDICT_BATCH_SIZE):
        batch = sentences[first : first + _PREDICT_BATCH_SIZE]
        encoded = tokenizer(
            [sentence.words for sentence in batch],
            is_split_into_words=True,
            truncation=True,
            max_length=job.seq_length,
        )
        rows = [{name: encoded[name][index] for name in encoded} for index in range(len(batch))]
        inputs = pad.tokenizer.pad(rows, return_tensors="pt")
        with torch.inference_mode():
            best = model(**inputs).logits.argmax(-1).tolist()
        for index, sentence in enumerate(batch):
            of_words = ["O"] * len(sentence.words)
            for number, word in reversed(list(enumerate(encoded.word_ids(index)))):
                if word is not None:
                    of_words[word] = labels[best[index][number]]
            found.append(of_words)
    return found


def measure() -> Iterator[Result]:
    """Runs the missing trainings, and compares all."""
    values = flags.FLAGS
    seeds = whole_numbers("seeds", least=0)
    subjects = [SUBJECTS[name] for name in known_names("subjects", SUBJECTS)]
    root = make_output_dir(values.output_dir, flag="output_dir")
    files = {
        name: str(require_file(values[name].value, flag=name).resolve())
        for name in ("train_file", "dev_file")
    }
    job = TaggingJob(
        model_dir=str(Path(values.model_dir).resolve()),
        **files,
        learning_rate=values.learning_rate,
        batch_size=values.batch_size,
        epochs=values.epochs,
        seq_length=values.seq_length,
        seed=0,
        threads=threads_from_flags(),
    )
    print(machine_line(), flush=True)
    found: dict[str, list[Found]] = {subject.name: [] for subject in subjects}
    for turn, seed in enumerate(seeds):
        for subject in rotated(subjects, turn):
            job = dataclasses.replace(job, seed=seed)
            found[subject.name].append(_once(subject, job, root))
    yield from _results(found, {**dataclasses.asdict(job), "seeds": seeds})


def _once(subject: Subject, job: TaggingJob, root: Path) -> Found:
    """The findings of a training, unless it was done before."""
    path = root / f"{subject.name}-seed{job.seed}"
    kept = path.with_name(f"{path.name}.json")
    if kept.exists():
        return read_json(kept, what="findings")
    load, started = ForeignLoad(), _processor_seconds()
    found = (
        train_ours(job, path)
        if subject.is_ours
        else run_in_process(subject, dataclasses.asdict(job), _PEER_FUNCTION)
    )
    found["cpu_seconds"] = _processor_seconds() - started
    found["foreign_share"] = load.share()
    write_json(kept, found)
    print(
        f"{subject.name}, seed {job.seed}: F1 {100 * found['f1']:.2f} %, "
        f"{found['sequences_per_second']:.4g} sequences/s",
        flush=True,
    )
    return found


def _processor_seconds() -> float:
    """CPU time of all finished child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _results(found: Mapping[str, Sequence[Found]], config: Mapping[str, Any]) -> Iterator[Result]:
    """The rates with their ratios, and the scores, all with their turns."""
    results = []
    for name, runs in found.items():
        described = {**config, "others_share_of_machine": [run["foreign_share"] for run in runs]}
        figures = {
            "training": ([run["sequences_per_second"] for run in runs], "sequences/s"),
            "CPU": ([run["cpu_seconds"] for run in runs], "s"),
            "F1": ([100 * run["f1"] for run in runs], "%"),
        }
        results += [
            spread_result(what, taken, unit, described, name)
            for what, (taken, unit) in figures.items()
        ]
    print_table(results)
    for name, runs in found.items():
        scores = [100 * run["f1"] for run in runs]
        deviation = statistics.stdev(scores) if len(scores) > 1 else 0.0
        print(f"{name}: F1 {statistics.fmean(scores):.2f} ± {deviation:.2f} %", flush=True)
    yield from results
    for name, runs in found.items():
        if name != "ours" and "ours" in found:
            for what in ("sequences_per_second", "cpu_seconds"):
                above, below = ([run[what] for run in each] for each in (found["ours"], runs))
                yield ratio_result(f"{what}, ours to {name}", above, below, config)


FLAGS = {
    **shared_flags("json", "seq_length", "threads", batch_size=32),
    "subjects": (["ours", "transformers"], f"Programs, of {', '.join(SUBJECTS)}."),
    "model_dir": (REQUIRED, "The weights to start from, in Hugging Face's format."),
    "train_file": (REQUIRED, "Labelled words, as run_ner.py's --train_file."),
    "dev_file": (REQUIRED, "The same, to score."),
    "output_dir": (REQUIRED, "Directory of our runs and of all findings."),
    "seeds": (["1", "2", "3", "4", "5"], "Seeds; each is a turn."),
    "learning_rate": (5e-5, "The highest rate of all trainings."),
    "epochs": (3.0, "Passes over the training file."),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, measure)
