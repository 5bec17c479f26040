"""The question-answering demo: a smoke test on cloze questions about the demo's text.

Called by ``make demo-qa``, after ``make demo``. Makes questions about the text on which the demo's
model was trained (:mod:`tools.demo.questions`), fine-tunes that model (or the weights given by
``--init_checkpoint``) on them with run_squad.py, and scores its answers to questions about other
documents next to two trivial baselines. It is for users without a SQuAD file and shows that
everything works; an explanation of the score is printed with it.
"""

from __future__ import annotations

import argparse
import collections
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bert_tf.durable.manifest import read_manifest  # noqa: E402
from bert_tf.tasks.question_answering.examples import Example, SquadFile, read_squad  # noqa: E402
from bert_tf.tasks.question_answering.metrics import evaluate  # noqa: E402
from bert_tf.util.errors import UserError, exit_on_user_error  # noqa: E402
from bert_tf.util.files import read_json, write_json  # noqa: E402
from tools.demo.questions import DEV_NAME, TRAIN_NAME  # noqa: E402
from tools.demo.run import put_aside, run  # noqa: E402

LABEL = "cloze questions, only a smoke test"
MEANING = """\
A question is a piece of its context with a phrase left out, so comparing strings answers it. An F1
near 100 means that the model has learnt to find the piece in the context, an F1 near the baselines
that it has not; neither allows conclusions about SQuAD."""
NUM_SHOWN = 3


class Recipe(NamedTuple):
    """The amount of data and training: about five minutes on two cores, more for BERT-base.

    Attributes:
      num_questions: total number of questions for training and scoring.
      max_context_words: maximum number of words in a context.
      max_seq_length: maximum number of tokens in question and context; lower if the model has fewer
        positions.
      epochs: passes over the training questions.
      batch_size: sequences per update.
      learning_rate: peak learning rate.
    """

    num_questions: int
    max_context_words: int
    max_seq_length: int
    epochs: float
    batch_size: int
    learning_rate: float


# The demo's model is small and weak, so it gets more and shorter contexts, and more epochs.
DEMO_MODEL_RECIPE = Recipe(8000, 45, 128, 4.0, 32, 1e-3)
GIVEN_MODEL_RECIPE = Recipe(1500, 80, 128, 2.0, 16, 5e-5)


class Model(NamedTuple):
    """A model: run_squad.py's flags for its weights, its number of positions and its recipe."""

    flags: list[str]
    positions: int
    recipe: Recipe


def find_model(demo_dir: Path, init_checkpoint: Path | None) -> Model:
    """The demo's model or the given one; raises UserError if there is none."""
    if init_checkpoint is not None:
        names = ("bert_config.json", "config.json")
        configs = [init_checkpoint / name for name in names if (init_checkpoint / name).is_file()]
        if not configs:
            raise UserError(
                f"--init_checkpoint: {init_checkpoint} contains neither {' nor '.join(names)}; "
                "give the directory of a model."
            )
        return Model(
            [f"--init_checkpoint={init_checkpoint}"], _positions(configs[0]), GIVEN_MODEL_RECIPE
        )
    model = demo_dir / "model"
    config = model / "bert_config.json"
    if not config.is_file() or not (model / "checkpoint").is_file():
        raise UserError(
            f"--demo_dir: there is no pre-trained model in {demo_dir}; run `make demo` first, or "
            "give the directory of a model with --init_checkpoint."
        )
    return Model([f"--init_checkpoint={model}"], _positions(config), DEMO_MODEL_RECIPE)


def _positions(config: Path) -> int:
    return int(read_json(config, what="configuration").get("max_position_embeddings", 512))


def training_flags(model: Model, epochs: float | None) -> list[str]:
    """The flags of run_squad.py that depend on the model; None takes the recipe's ``epochs``."""
    recipe = model.recipe
    length = min(recipe.max_seq_length, model.positions)
    return [
        *model.flags,
        f"--max_seq_length={length}",
        f"--doc_stride={length // 3}",
        f"--max_query_length={length // 3}",
        f"--train_batch_size={recipe.batch_size}",
        "--predict_batch_size=32",
        f"--num_train_epochs={epochs or recipe.epochs}",
        f"--learning_rate={recipe.learning_rate}",
    ]


def trivial_answers(train: Sequence[Example], dev: Sequence[Example]) -> dict[str, dict]:
    """Baseline answers without a model: name of the baseline -> {question id: answer}.

    ``first words`` returns as many words of the context as answers have on average,
    ``most frequent`` the most frequent answer to training questions.
    """
    answers = [example.answers[0].text for example in train]
    length = round(statistics.mean(len(answer.split()) for answer in answers))
    [(frequent, _)] = collections.Counter(answers).most_common(1)
    return {
        "first words": {e.question_id: " ".join(e.context.split()[:length]) for e in dev},
        "most frequent": {e.question_id: frequent for e in dev},
    }


def show_answers(squad: SquadFile, answers: Mapping[str, str]) -> None:
    """Prints a few questions with the model's answers."""
    print("\nQuestions that the model was not trained on, and its answers")
    step = len(squad.examples) // NUM_SHOWN or 1
    for example in squad.examples[step // 2 :: step][:NUM_SHOWN]:
        print(f"  {example.title}")
        print(f"      question: {example.question}")
        print(f"      answer:   {answers[example.question_id]}")
        print(f"      expected: {example.answers[0].text}")


def report(model_dir: Path, *, train: SquadFile, dev: SquadFile) -> dict[str, object]:
    """Prints scores and examples; returns the content of summary.json."""
    answers = read_json(model_dir / "predictions.json", what="predictions")
    compared = {**trivial_answers(train.examples, dev.examples), "fine-tuned model": answers}
    scores = {name: evaluate(dev, predicted) for name, predicted in compared.items()}
    show_answers(dev, answers)
    print(f"\nScores on {len(dev.examples)} questions about other documents ({LABEL})")
    print(f"  {'':20}{'exact match':>12}{'F1':>8}")
    for name, score in scores.items():
        print(f"  {name:20}{score['exact_match']:12.1f}{score['f1']:8.1f}")
    print(MEANING)
    return {
        "label": LABEL,
        "meaning": " ".join(MEANING.split()),
        "questions": {"train": len(train.examples), "dev": len(dev.examples)},
        "scores": {name: _main_scores(score) for name, score in scores.items()},
        "report": str(model_dir / "report.html"),
    }


def _main_scores(score: Mapping[str, float]) -> dict[str, float]:
    return {name: score[name] for name in ("exact_match", "f1")}


def put_model_of_another_demo_aside(output_dir: Path, model_dir: Path, made_of: dict) -> None:
    """Makes place if questions, weights or flags have changed; otherwise the run resumes."""
    record = output_dir / "made_of.json"
    is_other = record.is_file() and read_json(record, what="record of the demo") != made_of
    if is_other and model_dir.is_dir():
        put_aside(model_dir, "questions, weights or flags have changed, so a new model is trained")
    write_json(record, made_of)


def main(options: argparse.Namespace) -> None:
    """Runs every step, then prints the report."""
    start = time.monotonic()
    model = find_model(options.demo_dir.resolve(), options.init_checkpoint)
    output_dir = options.output_dir.resolve()
    questions, model_dir = output_dir / "questions", output_dir / "model"
    print(f"Question-answering demo: {LABEL}.")
    text = options.text
    if text is None:
        text = str(options.demo_dir.resolve() / "corpus")
        run(["-m", "tools.demo.corpus"], f"--output_dir={text}")
    run(
        ["-m", "tools.demo.questions"],
        f"--input_file={text}",
        f"--output_dir={questions}",
        f"--num_questions={options.num_questions or model.recipe.num_questions}",
        f"--max_context_words={model.recipe.max_context_words}",
    )
    flags = training_flags(model, options.epochs)
    made_of = {"questions": read_manifest(questions).digest, "flags": flags}
    put_model_of_another_demo_aside(output_dir, model_dir, made_of)
    run(
        ["run_squad.py"],
        f"--train_file={questions / TRAIN_NAME}",
        f"--predict_file={questions / DEV_NAME}",
        f"--output_dir={model_dir}",
        "--do_train",
        "--do_predict",
        *flags,
    )
    summary = report(
        model_dir, train=_read(questions / TRAIN_NAME), dev=_read(questions / DEV_NAME)
    )
    summary["seconds"] = round(time.monotonic() - start, 1)
    write_json(output_dir / "summary.json", summary)
    print(f"report: {summary['report']}")
    print(f"the demo took {summary['seconds']:.0f} s; summary: {output_dir / 'summary.json'}")
    print(f"This was a smoke test: {LABEL}. Give run_squad.py a SQuAD file for a real one.")


def _read(path: Path) -> SquadFile:
    return read_squad(path, flag="output_dir", version_2_with_negative=False, needs_answers=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=f"Fine-tunes on {LABEL}, from the demo's model or given weights."
    )
    parser.add_argument("--output_dir", type=Path, default=Path("demo/qa"))
    parser.add_argument(
        "--demo_dir", type=Path, default=Path("demo"), help="directory of `make demo`"
    )
    parser.add_argument("--text", help="the text that was given to `make demo`, if one was")
    parser.add_argument(
        "--init_checkpoint", type=Path, help="directory of a model, instead of the demo's"
    )
    parser.add_argument("--num_questions", type=int, help="total number of questions to make")
    parser.add_argument("--epochs", type=float, help="passes over the training questions")
    exit_on_user_error(main, parser.parse_args())
