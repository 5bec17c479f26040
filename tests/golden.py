"""Golden runs: whether a change of the code keeps every bit of what runs leave behind.

``keep`` runs every job of ``JOBS`` with the code of one tree and stores hashes of what is left:
weights, optimizer state, logs, predictions, results and ``run.json``. ``compare`` runs them again
with the code of this tree and names what differs. Jobs that resume do so from the checkpoints that
``keep`` wrote, so a change that cannot read yesterday's checkpoints is found, too.

    git worktree add /tmp/before REVISION
    python -m tests.golden keep /tmp/golden --tree=/tmp/before
    python -m tests.golden compare /tmp/golden

Sums of floating-point numbers depend on the processor and on TensorFlow's version, so hashes are
made and compared on one machine, with one interpreter for each TensorFlow.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import difflib
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

from tests.helpers import (
    choice_files,
    glue_files,
    preloaded,
    small_pretraining,
    squad_files,
    tagging_files,
)
from tests.helpers.programs import ROOT, environment

_HASHES = "hashes.json"
_INPUT = "input"
_TIMEOUT_SECONDS = 900
# What a run measures of itself, or what names the code that made it.
_VOLATILE = re.compile(
    r"time|.*seconds.*|.*per_second.*|content_sha256|git_commit|versions|command"
    r"|free_.*|hosts|.*memory.*|peak_flops|flops_utilisation|made_by"
)
_SKIPPED_FILES = re.compile(r"events\..*|report\.html|.*\.lock|.*\.meta")
_NUMBER = re.compile(r"\d[\d,.]*(e[+-]?\d+)?")


@dataclasses.dataclass(frozen=True)
class Job:
    """A run whose result is golden.

    Attributes:
      script: the program.
      flags: its flags; ``{input}`` is the directory of the data, ``{run}`` that of the job.
      ranks: how many processes.
      stop: further flags with which a first start ends early; the result is the second start's.
        None for a job that runs at once.
      needs: a job whose output is this one's input, as ``{needed}``.
    """

    script: str
    flags: Sequence[str]
    ranks: int = 1
    stop: Sequence[str] | None = None
    needs: str | None = None


_SHORT = (
    "--deterministic",
    "--num_threads=1",
    "--precision=fp32",
    "--display_loss_steps=1",
)
_STOP = ("--stop_after_steps=3",)
_PRETRAINING = (
    *_SHORT,
    "--bert_config_file={input}/bert_config.json",
    "--input_file={input}/records/train",
    "--eval_file={input}/records/heldout",
    *small_pretraining.GEOMETRY,
    "--do_train",
    "--do_eval",
    "--train_batch_size=8",
    "--eval_batch_size=16",
    "--num_train_steps=6",
    "--num_warmup_steps=2",
    "--learning_rate=1e-3",
    "--save_checkpoints_steps=3",
    "--eval_every_steps=3",
    "--max_eval_steps=2",
    "--scale_steps_by_ranks=false",
    "--output_dir={run}/model",
)
_DISTILLATION = (
    *(flag for flag in _PRETRAINING if "bert_config_file" not in flag),
    "--teacher_checkpoint={needed}/model",
    "--num_hidden_layers=1",
    "--min_target_probability=0.001",
    "--top_k_targets=20",
)
_KEPT_TARGETS = ("--cache_teacher={run}/targets", "--restrict_ce_to_mask", "--alpha_cos=0")
_FINETUNING = (
    *_SHORT,
    "--bert_config_file={input}/start/bert_config.json",
    "--vocab_file={input}/start/vocab.txt",
    "--features_dir={run}/features",
    "--do_train",
    "--do_predict",
    "--num_train_steps=6",
    "--learning_rate=2e-3",
    "--train_batch_size=8",
    "--save_checkpoints_steps=3",
    "--eval_every_steps=3",
    "--scale_steps_by_ranks=false",
    "--output_dir={run}/model",
)
_SQUAD = (
    *_FINETUNING,
    "--train_file={input}/train.json",
    "--predict_file={input}/dev.json",
    "--predict_batch_size=4",
    *squad_files.LENGTHS,
)
_SQUAD_2 = (
    *_SQUAD,
    "--version_2_with_negative",
    "--train_file={input}/train2.json",
    "--predict_file={input}/dev2.json",
)
_CLASSIFICATION = (
    *_FINETUNING,
    "--do_eval",
    "--task_name=SST-2",
    "--data_dir={input}/SST-2",
    "--predict_file={input}/SST-2/test.tsv",
    *glue_files.LENGTHS,
)
_TAGGING = (
    *_FINETUNING,
    "--do_eval",
    "--data_dir={input}/tagging",
    "--predict_file={input}/tagging/test.txt",
    *tagging_files.LENGTHS,
)
_CHOICE = (
    *_FINETUNING,
    "--do_eval",
    "--data_dir={input}/choice",
    "--predict_file={input}/choice/test.jsonl",
    *choice_files.LENGTHS,
)
_SCORING = (
    "--init_checkpoint={needed}/model",
    "--input_file={input}/texts.txt",
    "--all_checkpoints",
    "--metrics=masked,pseudo",
    "--max_seq_length=16",
    "--batch_tokens=200",
    "--precision=fp32",
    "--num_threads=1",
    "--output_dir={run}/model",
)
_RAMPS = ("--train_batch_size=2", "--global_batch_size=8", "--batch_ramp=4:0,8:2",
          "--length_ramp=16:0,32:3")  # fmt: skip
_MASKED_IN_TRAINING = (
    "--input_file={input}/unmasked/train",
    "--eval_file={input}/unmasked/heldout",
    "--do_whole_word_mask",
    "--ngram=2",
    "--final_masked_lm_prob=0.1",
)
_LAMB = ("--optimizer_type=lamb",)
_SHARDED = ("--shard_optimizer_state",)
_HALF = ("--precision=fp16", "--allow_slow_fp16")

JOBS = {
    "pretraining": Job("run_pretraining.py", _PRETRAINING, stop=_STOP),
    "pretraining-2": Job("run_pretraining.py", _PRETRAINING, ranks=2, stop=_STOP),
    "ramps": Job("run_pretraining.py", [*_PRETRAINING, *_RAMPS], stop=_STOP),
    "masked-in-training": Job(
        "run_pretraining.py", [*_PRETRAINING, *_MASKED_IN_TRAINING], stop=_STOP
    ),
    "length-buckets": Job("run_pretraining.py", [*_PRETRAINING, "--length_buckets"]),
    "phases": Job(
        "run_pretraining.py", [*_PRETRAINING, "--phases={input}/1.flags,{input}/2.flags"]
    ),
    "lamb": Job("run_pretraining.py", [*_PRETRAINING, *_LAMB], stop=_STOP),
    "lamb-2": Job("run_pretraining.py", [*_PRETRAINING, *_LAMB], ranks=2),
    "lans": Job("run_pretraining.py", [*_PRETRAINING, "--optimizer_type=lans"]),
    "muon": Job("run_pretraining.py", [*_PRETRAINING, "--optimizer_type=muon"], stop=_STOP),
    "sharded-2": Job("run_pretraining.py", [*_PRETRAINING, *_LAMB, *_SHARDED], ranks=2, stop=_STOP),
    "sharded-muon-2": Job(
        "run_pretraining.py", [*_PRETRAINING, "--optimizer_type=muon", *_SHARDED], ranks=2
    ),
    "fp16": Job("run_pretraining.py", [*_PRETRAINING, *_HALF], stop=_STOP),
    "fp16-static": Job("run_pretraining.py", [*_PRETRAINING, *_HALF, "--loss_scale=1024"]),
    "fp16-compression-2": Job(
        "run_pretraining.py", [*_PRETRAINING, "--fp16_compression"], ranks=2, stop=_STOP
    ),
    "recompute": Job("run_pretraining.py", [*_PRETRAINING, "--recompute"]),
    "xla": Job("run_pretraining.py", [*_PRETRAINING, "--use_xla"]),
    "schedule": Job(
        "run_pretraining.py",
        [*_PRETRAINING, "--lr_schedule=warmup_stable_decay", "--lr_decay_share=0.4",
         "--rewarm_at_step=4", "--num_rewarm_steps=1", "--layer_summary_steps=2"],
        stop=_STOP,
    ),
    "distillation": Job(
        "run_distillation.py", _DISTILLATION, needs="pretraining", stop=_STOP
    ),
    "kept-targets": Job(
        "run_distillation.py", [*_DISTILLATION, *_KEPT_TARGETS], needs="pretraining", stop=_STOP
    ),
    "kept-targets-2": Job(
        "run_distillation.py", [*_DISTILLATION, *_KEPT_TARGETS], ranks=2, needs="pretraining"
    ),
    "electra": Job("run_electra.py", _PRETRAINING, stop=_STOP),
    "electra-2": Job("run_electra.py", _PRETRAINING, ranks=2),
    "squad-seeds": Job("run_squad.py", [*_SQUAD, "--seeds=1,2"]),
    "squad": Job("run_squad.py", _SQUAD, stop=_STOP),
    "squad-2": Job("run_squad.py", _SQUAD, ranks=2),
    "squad2-seeds": Job("run_squad.py", [*_SQUAD_2, "--seeds=1,2"]),
    "squad2-2": Job("run_squad.py", _SQUAD_2, ranks=2),
    "classification": Job("run_classifier.py", _CLASSIFICATION, stop=_STOP),
    "classification-2": Job("run_classifier.py", _CLASSIFICATION, ranks=2),
    "tagging": Job("run_ner.py", _TAGGING, stop=_STOP),
    "tagging-2": Job("run_ner.py", _TAGGING, ranks=2),
    "choice": Job("run_multiple_choice.py", _CHOICE, stop=_STOP),
    "choice-2": Job("run_multiple_choice.py", _CHOICE, ranks=2),
    "distilled-squad": Job(
        "run_squad.py", [*_SQUAD, "--teacher_checkpoint={needed}/model"],
        needs="squad",
    ),
    "scoring": Job("run_evaluation.py", _SCORING, needs="pretraining"),
    "scoring-2": Job("run_evaluation.py", _SCORING, ranks=2, needs="pretraining"),
}  # fmt: skip
_PHASES = (
    "--num_train_steps=4\n--num_warmup_steps=2\n--save_checkpoints_steps=2\n--eval_every_steps=2\n",
    "--num_train_steps=7\n--num_warmup_steps=2\n--resume_from=previous\n",
)


class Place:
    """The directory of golden runs, and the tree whose code runs in it."""

    def __init__(self, directory: Path, tree: Path) -> None:
        self.directory, self.tree = directory.resolve(), tree.resolve()

    def make_input(self) -> None:
        """Writes the data of all jobs."""
        place = self.directory / _INPUT
        place.mkdir(parents=True)
        small_pretraining.write_bert_config(place / "bert_config.json", layers=2)
        text = place / "text.txt"
        text.write_text(small_pretraining.stdlib_documentation(100_000), encoding="utf-8")
        (place / "texts.txt").write_text(text.read_text(encoding="utf-8")[:3_000])
        common = [f"--input_file={text}", f"--output_dir={place}", "--dupe_factor=1",
                  f"--vocab_size={small_pretraining.VOCAB_SIZE}",
                  *small_pretraining.GEOMETRY]  # fmt: skip
        self._start(["-m", "data_prep.pipeline", *common])
        unmasked = place.with_name("unmasked_data")
        self._start(["-m", "data_prep.pipeline", *common, "--masking=dynamic",
                     f"--output_dir={unmasked}"])  # fmt: skip
        (unmasked / "records").rename(place / "unmasked")
        shutil.rmtree(unmasked)
        for number, content in enumerate(_PHASES, start=1):
            (place / f"{number}.flags").write_text(content)
        squad_files.write_model(place / "start")
        for name, size in (("train", 16), ("dev", 6)):
            squad_files.write_squad(place / f"{name}.json", size, seed=size)
            squad_files.write_squad(place / f"{name}2.json", size, seed=size, unanswerable=True)
        glue_files.write_data(place / "SST-2")
        tagging_files.write_data(place / "tagging")
        choice_files.write_data(place / "choice")

    def keep(self, name: str) -> dict[str, Any]:
        """Runs a job from its beginning, keeps its first part, and returns its hashes."""
        job, run = JOBS[name], self._run_directory(name)
        shutil.rmtree(run, ignore_errors=True)
        if job.stop is not None:
            self._run(name, job.stop)
            shutil.copytree(run, self._stopped_directory(name), dirs_exist_ok=True)
        return self._finish(name)

    def again(self, name: str) -> dict[str, Any]:
        """Runs a job, or the second part of one that resumes, and returns its hashes."""
        run = self._run_directory(name)
        shutil.rmtree(run, ignore_errors=True)
        if JOBS[name].stop is not None:
            shutil.copytree(self._stopped_directory(name), run)
        return self._finish(name)

    def _finish(self, name: str) -> dict[str, Any]:
        lines = self._run(name)
        return {"files": hashes_of(self._run_directory(name)), "lines": lines}

    def _run_directory(self, name: str) -> Path:
        return self.directory / "runs" / name

    def _stopped_directory(self, name: str) -> Path:
        return self.directory / "stopped" / name

    def _run(self, name: str, more: Sequence[str] = ()) -> list[str]:
        """Runs a job's command; returns what it printed, with numbers and places left out."""
        job = JOBS[name]
        names = {"input": self.directory / _INPUT, "run": self._run_directory(name)}
        if job.needs is not None:
            names["needed"] = self._run_directory(job.needs)
        flags = [flag.format(**names) for flag in [*job.flags, *more]]
        output = self._start([job.script, *flags], ranks=job.ranks)
        return [
            _NUMBER.sub("#", line).replace(str(self.tree), "TREE") for line in output.splitlines()
        ]

    def _start(self, command: Sequence[str], *, ranks: int = 1) -> str:
        env = {**environment(), "PYTHONPATH": str(self.tree)}
        program = [sys.executable, "-IS", preloaded.__file__, preloaded.address(env)]
        if ranks > 1:
            launcher = ["mpirun", "-np", str(ranks), "--oversubscribe", "--bind-to", "none"]
            program = [*launcher, *program]
            command = [*command, "--horovod"]
        done = subprocess.run(
            [*program, *command],
            cwd=self.tree,
            env=env,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
        return done.stdout


def hashes_of(directory: Path) -> dict[str, str]:
    """File, or file and variable, -> SHA-256 of the content without what runs measure."""
    found = {}
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        name = str(path.relative_to(directory))
        if path.suffix == ".index":
            reader = tf.train.load_checkpoint(str(path.with_suffix("")))
            for variable in sorted(reader.get_variable_to_shape_map()):
                array = reader.get_tensor(variable)
                content = f"{array.dtype}{array.shape}".encode() + array.tobytes()
                found[f"{name}: {variable}"] = _digest(content)
        elif not _SKIPPED_FILES.fullmatch(path.name) and ".data-" not in path.name:
            found.update(_parts_of(path, name))
    return found


def _parts_of(path: Path, name: str) -> dict[str, str]:
    if path.suffix == ".json":
        content = _without_volatile(json.loads(path.read_text()))
        if path.name == "run.json":
            return {
                f"{name}: {part}.{key}": json.dumps(value)
                for part, entries in content.items()
                for key, value in sorted(_flat(entries).items())
            }
        return {name: _digest(json.dumps(content, sort_keys=True).encode())}
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return {name: _digest(json.dumps([_without_volatile(line) for line in lines]).encode())}
    if path.suffix == ".txt":
        lines = path.read_text().splitlines()
        kept = [line for line in lines if not _VOLATILE.fullmatch(line.partition(" = ")[0])]
        return {name: _digest("\n".join(kept).encode())}
    return {name: _digest(path.read_bytes())}


def _flat(entries: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(entries, dict):
        return {prefix: entries}
    found = {}
    for key, value in entries.items():
        found.update(_flat(value, f"{prefix}.{key}" if prefix else key))
    return found


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _without_volatile(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if not _VOLATILE.fullmatch(k)}
        return {key: _without_volatile(entry) for key, entry in kept.items()}
    if isinstance(value, list):
        return [_without_volatile(entry) for entry in value]
    return value


def _machine() -> dict[str, str]:
    """What sums depend on."""
    flags = next(
        (line for line in Path("/proc/cpuinfo").read_text().splitlines() if "flags" in line), ""
    )
    return {
        "tensorflow": tf.__version__,
        "python": platform.python_version(),
        "processor": _digest(flags.encode()),
    }


def _with_needs(names: Sequence[str]) -> list[str]:
    """The jobs and those that they need, these first."""
    needed = {JOBS[name].needs for name in names} - {None}
    first = [name for name in JOBS if name in needed]
    return [*first, *(name for name in names if name not in needed)]


def _run_all(
    names: Sequence[str], start: Callable[[str], dict[str, Any]], processes: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Runs jobs, several at a time, shows each with its time and yields what it left."""

    def timed(name):
        began = time.monotonic()
        found = start(name)
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
        return name, found

    needed = {JOBS[name].needs for name in names}
    with concurrent.futures.ThreadPoolExecutor(processes) as pool:
        for part in ([n for n in names if n in needed], [n for n in names if n not in needed]):
            yield from pool.map(timed, part)


def _differences(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """What differs between the files of two runs of a job."""
    before, after = expected["files"], found["files"]
    lines = [f"missing: {key}" for key in before.keys() - after.keys()]
    lines += [f"new: {key}" for key in after.keys() - before.keys()]
    lines += [
        f"changed: {key} ({before[key]} -> {after[key]})"
        for key in before.keys() & after.keys()
        if before[key] != after[key]
    ]
    return sorted(lines)


def main() -> int:
    """Keeps or compares; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("keep", "compare"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--tree", type=Path, default=ROOT, help="whose code runs")
    parser.add_argument("--only", default="", help="an expression that jobs' names must contain")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 1)))
    parser.add_argument("--messages", action="store_true", help="show how what is printed differs")
    given = parser.parse_args()
    place = Place(given.directory, given.tree)
    names = _with_needs([name for name in JOBS if re.search(given.only, name)])
    file = given.directory / _HASHES
    if given.action == "keep":
        if not (given.directory / _INPUT).exists():
            place.make_input()
        kept = json.loads(file.read_text())["jobs"] if file.exists() else {}
        for name, found in _run_all(names, place.keep, given.processes):
            kept[name] = found
            file.write_text(json.dumps({"machine": _machine(), "jobs": kept}, indent=1))
        return 0
    stored = json.loads(file.read_text())
    if stored["machine"] != _machine():
        print(f"{file} was made on {stored['machine']}, this is {_machine()}; keep it anew here.")
        return 2
    for name in [name for name in names if name not in stored["jobs"]]:
        print(f"{name}: not kept")  # by a tree that has no such job
        names.remove(name)
    failed = False
    for name, found in _run_all(names, place.again, given.processes):
        expected = stored["jobs"][name]
        differences = _differences(expected, found)
        failed |= bool(differences)
        print(f"{name}: {'differs' if differences else 'equal'}")
        print("".join(f"  {line}\n" for line in differences), end="")
        if given.messages:
            diff = difflib.unified_diff(expected["lines"], found["lines"], lineterm="", n=0)
            print("".join(f"  {line}\n" for line in diff), end="")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
