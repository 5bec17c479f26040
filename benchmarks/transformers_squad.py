"""The peer of run_squad.py: the job of transformers' question-answering example, timed.

    python -m benchmarks.transformers_squad --init_checkpoint=DIR --train_file=train.json \
        --predict_file=dev.json --output_dir=out

A compact loop of its own on torch and transformers (4.57). As in the library's examples/pytorch/
question-answering/run_qa.py: the fast tokenizer, windows padded to 384 tokens that overlap by 128
(there ``doc_stride`` is the overlap; in Google's scripts and ours it is the step), a label at [CLS]
where a window lacks the answer, AdamW (fused, as the Trainer's default), gradients clipped at 1, a
linear schedule, the best of 20 starts and ends with at most 30 tokens from one to the other. To the
peer's advantage, all features are in memory before the first step: no data loader is timed.

Writes ``predictions.json`` and ``result.json``. benchmarks.squad_finetuning runs this in a process
of its own and scores it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import flags

from benchmarks.script import define_flag
from bert_tf.command_line import run_command
from bert_tf.files import make_output_dir, write_json
from bert_tf.squad.examples import Example, SquadFile, read_squad

if TYPE_CHECKING:
    import torch

PREDICTIONS_NAME, RESULT_NAME = "predictions.json", "result.json"
Timing = tuple[int, float]  # sequences of a batch and the seconds that it took
CONTEXT = 1  # number of the context among the two texts of a window; the question is 0


@dataclasses.dataclass(frozen=True)
class Settings:
    """The hyper-parameters, under run_squad.py's names; ``doc_stride`` is an overlap here."""

    max_seq_length: int = 384
    doc_stride: int = 128
    train_batch_size: int = 12
    predict_batch_size: int = 8
    learning_rate: float = 3e-5
    num_train_epochs: float = 2.0
    warmup_proportion: float = 0.1
    weight_decay: float = 0.01
    seed: int = 1
    n_best_size: int = 20
    max_answer_length: int = 30
    version_2_with_negative: bool = False
    precision: str = "fp32"
    pad_to_max_length: bool = True


@dataclasses.dataclass
class Windows:
    """The windows of a file.

    Attributes:
      inputs: the model's inputs by name, int64 [N, S].
      examples: number of each window's question, [N].
      offsets: characters of the context of every token, [N, S, 2]; -1 outside the context.
    """

    inputs: dict[str, torch.Tensor]
    examples: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.examples)

    def batch(self, rows: Sequence[int], *, cut: bool) -> dict[str, torch.Tensor]:
        """The inputs of some windows; ``cut`` drops the padding that all of them have."""
        index = np.asarray(rows)
        batch = {name: values[index] for name, values in self.inputs.items()}
        if cut:
            length = int(batch["attention_mask"].sum(dim=1).max())
            batch = {n: v[:, :length] if v.ndim == 2 else v for n, v in batch.items()}
        return batch


def make_windows(
    examples: Sequence[Example], tokenizer: Any, settings: Settings, *, labelled: bool
) -> Windows:
    """Cuts the contexts into windows; ``labelled`` adds the answer's first and last token."""
    import torch

    encoded = tokenizer(
        [example.question.lstrip() for example in examples],
        [example.context for example in examples],
        truncation="only_second",
        max_length=settings.max_seq_length,
        stride=settings.doc_stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        return_token_type_ids=True,
        padding="max_length",
    )
    of_window = np.asarray(encoded["overflow_to_sample_mapping"])
    offsets = np.asarray(encoded["offset_mapping"])
    for window, row in enumerate(offsets):
        row[[part != CONTEXT for part in encoded.sequence_ids(window)]] = -1
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = {name: torch.tensor(encoded[name]) for name in names}
    if labelled:
        labels = [_label(encoded, n, examples[e]) for n, e in enumerate(of_window)]
        inputs["start_positions"], inputs["end_positions"] = torch.tensor(labels).T
    return Windows(inputs, of_window, offsets)


def _label(encoded: Any, window: int, example: Example) -> tuple[int, int]:
    """First and last token of the answer, both 0 where the window does not hold all of it."""
    if example.is_impossible:
        return 0, 0
    answer = example.answers[0]
    characters = answer.start, answer.start + len(answer.text) - 1
    first, last = (encoded.char_to_token(window, c, sequence_index=CONTEXT) for c in characters)
    return (0, 0) if first is None or last is None else (first, last)


def training_rows(num_windows: int, settings: Settings) -> Iterator[list[int]]:
    """The windows of each batch, in another order in each epoch; the last batch may be smaller."""
    generator = np.random.default_rng(settings.seed)
    steps = num_train_steps(num_windows, settings)
    while steps > 0:
        order = generator.permutation(num_windows).tolist()
        for first in range(0, num_windows, settings.train_batch_size):
            if steps > 0:
                yield order[first : first + settings.train_batch_size]
            steps -= 1


def num_train_steps(num_windows: int, settings: Settings) -> int:
    """Updates of the whole run."""
    per_epoch = -(-num_windows // settings.train_batch_size)
    return max(1, round(per_epoch * settings.num_train_epochs))


def train(model: torch.nn.Module, windows: Windows, settings: Settings) -> list[Timing]:
    """Fine-tunes the model; returns the sequences and the seconds of every step."""
    from benchmarks.speed.huggingface import Updates

    steps = num_train_steps(len(windows), settings)
    updates = Updates(
        model,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        warmup_steps=int(steps * settings.warmup_proportion),
        steps=steps,
        precision=settings.precision,
    )
    timings = []
    for rows in training_rows(len(windows), settings):
        start = time.perf_counter()
        updates.update([windows.batch(rows, cut=not settings.pad_to_max_length)])
        timings.append((len(rows), time.perf_counter() - start))
    return timings


def predict(
    model: torch.nn.Module, windows: Windows, settings: Settings
) -> tuple[np.ndarray, np.ndarray, list[Timing]]:
    """Start and end logits, float32 [N, S], and the sequences and the seconds of every batch."""
    import torch

    from benchmarks.speed.huggingface import autocast

    shape = len(windows), settings.max_seq_length
    start_logits, end_logits = np.full(shape, -1e4, np.float32), np.full(shape, -1e4, np.float32)
    timings = []
    model.eval()
    with torch.no_grad(), autocast(settings.precision):
        for first in range(0, len(windows), settings.predict_batch_size):
            start = time.perf_counter()
            rows = range(len(windows))[first : first + settings.predict_batch_size]
            output = model(**windows.batch(rows, cut=not settings.pad_to_max_length))
            length = output.start_logits.shape[1]
            start_logits[rows, :length] = output.start_logits.float().numpy()
            end_logits[rows, :length] = output.end_logits.float().numpy()
            timings.append((len(rows), time.perf_counter() - start))
    return start_logits, end_logits, timings


def best_answers(
    examples: Sequence[Example],
    windows: Windows,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    settings: Settings,
) -> dict[str, str]:
    """The text of the best span of all windows of a question; "" where none is better (2.0)."""
    best = [(-np.inf, "") for _ in examples]
    null = np.full(len(examples), np.inf)
    for window, number in enumerate(windows.examples):
        score, (start, end) = _best_span(
            start_logits[window], end_logits[window], windows.offsets[window], settings
        )
        if score > best[number][0]:
            best[number] = (score, examples[number].context[start:end])
        null[number] = min(null[number], start_logits[window, 0] + end_logits[window, 0])
    is_null = settings.version_2_with_negative & (null > [score for score, _ in best])
    return {
        example.question_id: "" if nothing else text
        for example, (_, text), nothing in zip(examples, best, is_null)
    }


def _best_span(
    start_logits: np.ndarray, end_logits: np.ndarray, offsets: np.ndarray, settings: Settings
) -> tuple[float, tuple[int, int]]:
    """Score and characters of the best span between the ``n_best_size`` best starts and ends."""
    starts = np.argsort(-start_logits)[: settings.n_best_size]
    ends = np.argsort(-end_logits)[: settings.n_best_size]
    lengths = ends[None, :] - starts[:, None] + 1
    scores = start_logits[starts][:, None] + end_logits[ends][None, :]
    in_context = (offsets[starts, 0] >= 0)[:, None] & (offsets[ends, 0] >= 0)[None, :]
    allowed = in_context & (lengths >= 1) & (lengths <= settings.max_answer_length)
    scores = np.where(allowed, scores, -np.inf)
    row, column = np.unravel_index(np.argmax(scores), scores.shape)
    return scores[row, column], (offsets[starts[row], 0], offsets[ends[column], 1])


def run(
    settings: Settings, *, init_checkpoint: str, train_file: SquadFile, predict_file: SquadFile
) -> tuple[dict[str, str], dict[str, Any]]:
    """Trains and predicts; returns the answers and the timings."""
    import torch
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    torch.manual_seed(settings.seed)
    tokenizer = AutoTokenizer.from_pretrained(init_checkpoint)
    model = AutoModelForQuestionAnswering.from_pretrained(init_checkpoint)
    to_learn = [e for e in train_file.examples if e.question_id not in set(train_file.unusable)]
    training = make_windows(to_learn, tokenizer, settings, labelled=True)
    train_timings = train(model, training, settings)
    to_answer = make_windows(predict_file.examples, tokenizer, settings, labelled=False)
    *logits, predict_timings = predict(model, to_answer, settings)
    answers = best_answers(predict_file.examples, to_answer, *logits, settings)
    return answers, {"train_timings": train_timings, "predict_timings": predict_timings}


def _main() -> None:
    values = flags.FLAGS
    fields = [field.name for field in dataclasses.fields(Settings)]
    settings = Settings(**{name: getattr(values, name) for name in fields})
    output_dir = make_output_dir(values.output_dir, flag="output_dir")

    def squad(flag: str, *, needs_answers: bool) -> SquadFile:
        return read_squad(
            getattr(values, flag),
            flag=flag,
            version_2_with_negative=settings.version_2_with_negative,
            needs_answers=needs_answers,
        )

    answers, result = run(
        settings,
        init_checkpoint=values.init_checkpoint,
        train_file=squad("train_file", needs_answers=True),
        predict_file=squad("predict_file", needs_answers=False),
    )
    write_json(Path(output_dir) / PREDICTIONS_NAME, answers)
    write_json(Path(output_dir) / RESULT_NAME, result)


def define_flags() -> None:
    """Defines the flags of ``python -m benchmarks.transformers_squad``: the fields of Settings."""
    for name in ("init_checkpoint", "train_file", "predict_file", "output_dir"):
        flags.DEFINE_string(name, None, "As in run_squad.py.", required=True)
    for field in dataclasses.fields(Settings):
        if field.name != "precision":
            define_flag(field.name, field.default, "As in run_squad.py.")
    flags.DEFINE_enum("precision", Settings.precision, ["fp32", "bf16"], "bf16: autocast.")


if __name__ == "__main__":
    define_flags()
    run_command(lambda _: _main())
