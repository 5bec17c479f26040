"""The log of a run, which writes metrics to the terminal, JSON lines and TensorBoard."""

from __future__ import annotations

import itertools
import json
import os
import socket
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

from bert_tf.durable.sealed_json import SEAL, sealed, unsealed
from bert_tf.model_directory.run_record import RUN_RECORD_NAME, read_run_record
from bert_tf.records.tfrecord import frame_records
from bert_tf.util.console import say
from bert_tf.util.errors import UserError
from bert_tf.util.files import atomic_open, explain_write_errors, finite_or_null, write_json
from bert_tf.util.progress import format_duration

STEPS = "log.jsonl"
EVALUATIONS = "eval_log.jsonl"
LAYERS = "layer_log.jsonl"

_EVALUATION = "evaluation log"
_ADVICE = "restore the file, or delete it to forget the evaluations so far"

Record = dict[str, Any]

_LINES_OF_A_RUN = 30
_MOST_SECONDS_OF_A_LINE = 60.0

# The names of our metrics in NVIDIA's scripts.
_DLLOGGER_NAMES = {
    "loss": "total_loss",
    "masked_lm_loss": "mlm_loss",
    "next_sentence_loss": "nsp_loss",
    "sequences_per_second": "throughput_train",
    "loss_scale": "loss_scaler",
}


class RunLog:
    """Writes a step's metrics as a terminal line, a JSON line and TensorBoard summaries.

    Only rank 0 has one. ``log.jsonl`` has training steps, ``eval_log.jsonl`` evaluations and
    ``layer_log.jsonl`` metrics of layers and variables, each step once, over all starts of a run.
    Values that are not finite are written as null. Evaluations decide when a run stops, so each has
    a digest.
    """

    def __init__(
        self,
        output_dir: Path,
        *,
        report_loss: bool = True,
        few_lines: bool = False,
        dllog_path: str | None = None,
    ) -> None:
        """Writes to ``output_dir``, from the first step or evaluation.

        ``report_loss``: terminal lines show losses. ``few_lines``: there are about 30 over a run,
        or one per minute in a longer run. ``dllog_path``: a file for the same metrics in the format
        of NVIDIA's DLLogger, overwritten unless the run is resumed.
        """
        self._output_dir = output_dir
        self._report_loss = report_loss
        self._few_lines = few_lines
        self._printed: tuple[int, float] | None = None  # the step, and when
        self._dllog = Path(dllog_path) if dllog_path else None
        self._dllog_mode = "w"
        self._started = time.time()
        self._events: Path | None = None
        self._resumed_at: int | None = None

    def resume(self, step: int) -> None:
        """Drops what was logged after ``step``, at which the run resumes."""
        self._events = None
        self._resumed_at = step
        self._dllog_mode = "a" if step else "w"
        for name in (STEPS, EVALUATIONS, LAYERS):
            history = read_history(self._output_dir, name)
            self._rewrite(name, [record for record in history if record["step"] <= step])

    def record(self, entries: Mapping[str, Any]) -> None:
        """Adds entries to ``run.json`` that become known only while the job runs."""
        record = read_run_record(self._output_dir)
        if record is None:
            raise UserError(
                f"run record: {self._output_dir / RUN_RECORD_NAME} no longer exists; do not remove "
                "it during the run."
            )
        write_json(record.path, {**record.content, **entries})

    def message(self, text: str) -> None:
        """Prints a line; training continues even if it cannot be printed."""
        say(text)

    def step(
        self,
        step: int,
        figures: Mapping[str, float],
        *,
        total_steps: int,
        seconds_left: float,
        details: Mapping[str, float] | None = None,
    ) -> None:
        """Logs the metrics at ``step`` (optimizer updates done); ``details`` are not printed."""
        recorded = {**figures, **(details or {})}
        self._append(STEPS, _record(step, recorded))
        self._add_summaries(step, recorded)
        self._add_dllog_line(step, recorded)
        if not self._is_printed(step, total_steps):
            return
        shown = "  ".join(
            f"{name} {_show(value)}"
            for name, value in figures.items()
            if self._report_loss or not name.endswith("loss")
        )
        self.message(f"step {step}/{total_steps}  {shown}  ETA {format_duration(seconds_left)}")

    def _is_printed(self, step: int, total_steps: int) -> bool:
        now = time.monotonic()
        if self._few_lines and self._printed is not None and step < total_steps:
            before, then = self._printed
            passed = step * _LINES_OF_A_RUN // total_steps > before * _LINES_OF_A_RUN // total_steps
            if not passed and now - then < _MOST_SECONDS_OF_A_LINE:
                return False
        self._printed = step, now
        return True

    def layers(
        self,
        step: int,
        by_layer: Mapping[str, Mapping[str, float]],
        by_variable: Mapping[str, Mapping[str, float]],
    ) -> None:
        """Logs metrics of layers and variables at ``step``; TensorBoard gets those of layers."""
        record = {"layers": by_layer, "variables": by_variable}
        self._append(LAYERS, _record(step, _rounded(record)))
        tags = {
            f"{figure}/{layer}": value
            for layer, figures in by_layer.items()
            for figure, value in figures.items()
        }
        self._add_summaries(step, tags)

    def evaluation(
        self, step: int, figures: Mapping[str, float], *, note: str = "", of: str = ""
    ) -> None:
        """Logs an evaluation of the weights at ``step``, named ``of``, replacing an earlier one."""
        others = [r for r in read_history(self._output_dir, EVALUATIONS) if r["step"] != step]
        self._rewrite(EVALUATIONS, [*others, _record(step, figures)])
        self._add_summaries(step, figures, prefix="eval/")
        self._add_dllog_line(step, figures)
        # Results of SQuAD 2.0 have one metric under two names, one from each official script.
        printed = (
            f"{name} {value if isinstance(value, int) else f'{value:.4f}'}"
            for name, value in figures.items()
            if name != "exact"
        )
        of = f"of {of}" if of else f"at step {step}"
        self.message(f"evaluation {of}: {'  '.join(printed)}{note}")

    def _append(self, name: str, record: Mapping[str, object]) -> None:
        path = self._output_dir / name
        with explain_write_errors(path), open(path, "a", encoding="utf-8") as file:
            file.write(_line(record))

    def _rewrite(self, name: str, records: list[Record]) -> None:
        path = self._output_dir / name
        if name == EVALUATIONS:
            records = list(map(sealed, records))
        content = "".join(map(_line, records))
        current = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        if content != current:
            with atomic_open(path) as file:
                file.write(content)

    def _add_dllog_line(self, step: int, figures: Mapping[str, float]) -> None:
        if self._dllog is None:
            return
        now = time.time()
        line = {
            "timestamp": str(now),
            "datetime": str(datetime.fromtimestamp(now).astimezone()),
            "elapsedtime": str(now - self._started),
            "type": "LOG",
            "step": step,
            "data": {_DLLOGGER_NAMES.get(name, name): value for name, value in figures.items()},
        }
        with explain_write_errors(self._dllog):
            self._dllog.parent.mkdir(parents=True, exist_ok=True)
            with open(self._dllog, self._dllog_mode, encoding="utf-8") as file:
                file.write(f"DLLL {_line(line)}")
        self._dllog_mode = "a"

    def _add_summaries(self, step: int, figures: Mapping[str, float], prefix: str = "") -> None:
        values = [tf.Summary.Value(tag=prefix + k, simple_value=v) for k, v in figures.items()]
        now = time.time()
        events = [tf.Event(wall_time=now, step=step, summary=tf.Summary(value=values))]
        if self._events is None:
            self._events = self._new_events_file(now)
            if self._resumed_at is not None:
                # This makes TensorBoard drop what was logged earlier for later steps.
                start = tf.SessionLog(status=tf.SessionLog.START)
                events.insert(
                    0, tf.Event(wall_time=now, step=self._resumed_at + 1, session_log=start)
                )
            events.insert(0, tf.Event(wall_time=now, file_version="brain.Event:2"))
        # TensorFlow's writer is not used, because an error in its thread prints a stack trace.
        records = frame_records(event.SerializeToString() for event in events)
        with explain_write_errors(self._events), open(self._events, "ab") as file:
            file.write(records.content.tobytes())

    def _new_events_file(self, now: float) -> Path:
        name = f"events.out.tfevents.{int(now)}.{socket.gethostname()}.{os.getpid()}"
        paths = (self._output_dir / f"{name}.{number}" for number in itertools.count())
        return next(path for path in paths if not path.exists())


def read_history(output_dir: Path, name: str) -> list[Record]:
    """The lines of one of the logs, ordered by step, each step once.

    If a step was logged twice, as by a run that was killed and then resumed, the later line counts.
    An incomplete line, written when the run was killed, is left out. Raises UserError for a damaged
    evaluation.
    """
    path = output_dir / name
    if not path.is_file():
        return []
    by_step = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        try:
            record = json.loads(line)
        except ValueError as error:
            # Earlier versions appended lines, which a kill could cut short.
            if name == EVALUATIONS and (line.endswith("\n") or SEAL in line):
                raise UserError(f"{_EVALUATION}: {path} has a damaged line; {_ADVICE}.") from error
            continue
        if isinstance(record, dict) and name == EVALUATIONS:
            record = unsealed(record, path=path, what=_EVALUATION, advice=_ADVICE)
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            by_step[record["step"]] = record
    return [by_step[step] for step in sorted(by_step)]


def _record(step: int, figures: Mapping[str, Any]) -> Record:
    return {"step": step, **figures, "time": time.time()}


def _rounded(value: Any) -> Any:
    """Rounds values in nested dictionaries to six digits, which halves their length."""
    if isinstance(value, Mapping):
        return {key: _rounded(inside) for key, inside in value.items()}
    return float(f"{value:.6g}")


def _line(record: Mapping[str, object]) -> str:
    return json.dumps(finite_or_null(record), allow_nan=False) + "\n"


def _show(value: float) -> str:
    return f"{value:.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"
