"""What padding costs a fine-tuning and a prediction, and what it costs where it is left out.

    python -m benchmarks.padding --squad_train_file=train-v1.1.json \
        --squad_predict_file=dev-v1.1.json --glue_dir=glue --vocab_file=vocab.txt \
        --init_checkpoint=DIR --work_dir=work --json=padding.json

On SQuAD and on tasks of GLUE (``--tasks``), in three forms:

* ``padded``: to ``--squad_seq_length`` or ``--glue_seq_length``, and all of it computed;
* ``tokens alone``: the same batches, of which padding is left out (run_squad.py
  ``--length_buckets=false``);
* ``by length``: that, and batches of sequences of like length (run_squad.py's default).

``--parts`` takes some of these:

* ``fill``: the share of positions that are tokens, padded and by length, over whole files.
* ``speed``: sequences a second of updates and of predictions of the network of
  ``--bert_config_file``, with random weights. All forms go over the same ``--sequences``, spread
  over the file, by turns, after a batch of each length. A ratio is the median of the turns' ratios.
* ``scores``: the network of ``--init_checkpoint`` is fine-tuned in all forms with each of
  ``--seeds`` on ``--score_sequences`` of the training file, and predicts the other file padded and
  by length.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from absl import flags

from benchmarks.machine import describe_machine
from benchmarks.results import Result, print_result, ratio_result, spread_result
from benchmarks.script import network_from_flags, run_benchmark
from benchmarks.speed.load import ForeignLoad
from benchmarks.speed.subjects import BERT_BASE
from benchmarks.squad_finetuning import cut_squad, parse_seeds
from bert_tf import environment
from bert_tf.checkpoint.model_files import model_files
from bert_tf.config.bert_config import BertConfig
from bert_tf.errors import UserError
from bert_tf.files import make_output_dir, require_file, write_json
from bert_tf.glue.formats import GLUE_TASKS
from bert_tf.text.loading import load_tokenizer

# TensorFlow starts when the flags are known.
if TYPE_CHECKING:
    from benchmarks.padding_runs import PredictionOrder, TrainedNetwork, TrainingOrder
    from benchmarks.padding_tasks import Batch, Case

SQUAD = "squad"
TASKS = (SQUAD, *GLUE_TASKS)
FILL, SPEED, SCORES = "fill", "speed", "scores"
PARTS = (FILL, SPEED, SCORES)
PADDED, TOKENS, BUCKETED = "padded", "tokens alone", "by length"

_FILES = {
    SQUAD: ("squad_train_file", "squad_predict_file"),
    **dict.fromkeys(GLUE_TASKS, ("glue_dir",)),
}

Config = Mapping[str, Any]


class Form(NamedTuple):
    """What is done about padding.

    Attributes:
      by_length: whether batches are of sequences of like length.
      skip_padding: the encoder's.
    """

    by_length: bool
    skip_padding: bool


FORMS = {PADDED: Form(False, False), TOKENS: Form(False, True), BUCKETED: Form(True, True)}


def fill_results(
    case: Case,
    training: Mapping[str, TrainingOrder],
    prediction: Mapping[str, PredictionOrder],
    config: Config,
) -> list[Result]:
    """Tokens in a hundred positions, of an epoch of training and of a prediction, by form."""
    results = []
    for form in (PADDED, BUCKETED):
        order = training[form]
        batches = range(order.batches_in_an_epoch)
        tokens = sum(int(case.train.lengths[order.indices(n)].sum()) for n in batches)
        computed = sum(order.positions(n) for n in batches) * case.batch_size
        fill = {"training": tokens / computed}
        computed = sum(batch["input_ids"].size for _, batch in prediction[form].batches())
        fill["prediction"] = int(case.dev.lengths.sum()) / computed
        for what, share in fill.items():
            name = f"{case.name}, {what}, filled positions, {form}"
            results.append(_result(name, 100.0 * share, "%", config))
    return results


def speed_results(
    case: Case,
    networks: Mapping[str, TrainedNetwork],
    training: Mapping[str, TrainingOrder],
    prediction: Mapping[str, PredictionOrder],
    *,
    turns: int,
    config: Config,
) -> list[Result]:
    """Sequences a second of each form, and how many times faster than padded ones the others are.

    All mappings are from forms.
    """

    def update(form: str) -> int:
        order = training[form]
        networks[form].train(order, order.batches_in_an_epoch)
        return order.batches_in_an_epoch * case.batch_size

    def predict(form: str) -> int:
        return len(next(iter(networks[form].predict(prediction[form]).values())))

    for form, network in networks.items():
        for batch in _of_each_length(map(training[form].batch, _epoch(training[form]))):
            network.update(batch)
        for batch in _of_each_length(batch for _, batch in prediction[form].batches()):
            network.outputs(batch)
    results = []
    for what, once in (("training", update), ("prediction", predict)):
        rates, facts = _by_turns(once, turns)
        described = {**config, **facts, "precision": networks[PADDED].precision}
        for form in FORMS:
            name = f"{case.name}, {what}, {form}"
            results.append(spread_result(name, rates[form], "sequences/s", described))
        for form in (TOKENS, BUCKETED):
            name = f"{case.name}, {what}, {form} to {PADDED}"
            results.append(ratio_result(name, rates[form], rates[PADDED], described))
    return results


def score_results(
    case: Case,
    fine_tuned: Callable[[str, int], TrainedNetwork],
    prediction: Mapping[str, PredictionOrder],
    *,
    seeds: Sequence[int],
    config: Config,
) -> list[Result]:
    """Scores of all forms of training, and how many answers the form of prediction changes.

    Args:
      case: what to predict.
      fine_tuned: from a form and a seed to the network that was trained so.
      prediction: all of the case's dev file, by form.
      seeds: of the trainings.
      config: of the results.
    """
    scores: dict[str, dict[str, list[float]]] = {}
    changed = answered = 0
    for seed in seeds:
        for form in FORMS:
            with fine_tuned(form, seed) as network:
                answers = {
                    f: case.answers(network.predict(prediction[f])) for f in (PADDED, BUCKETED)
                }
            own = BUCKETED if FORMS[form].by_length else PADDED
            differing = sum(a != b for a, b in zip(*answers.values()))
            print(f"{case.name}: padding changes {differing} answers", flush=True)
            changed += differing
            answered += len(answers[PADDED])
            for name, value in case.scores(answers[own]).items():
                scores.setdefault(name, {}).setdefault(form, []).append(value)
                print(f"{case.name}, trained {form}, seed {seed}: {name} {value:.2f}", flush=True)
    config = {**config, "seeds": list(seeds)}
    results = []
    for name, by_form in scores.items():
        for form, values in by_form.items():
            described = {**config, "of_seeds": values}
            label = f"{case.name}, {name}, trained {form}"
            results.append(_result(label, statistics.mean(values), "%", described))
        means = {form: statistics.mean(values) for form, values in by_form.items()}
        between = max(max(values) - min(values) for values in by_form.values())
        described = {**config, "most_between_seeds": between}
        for form in (TOKENS, BUCKETED):
            label = f"{case.name}, {name}, trained {form} above {PADDED}"
            results.append(_result(label, means[form] - means[PADDED], "points", described))
    label = f"{case.name}, answers that padding changes in prediction"
    results.append(_result(label, changed, f"of {answered}", config))
    return results


def _by_turns(
    once: Callable[[str], int], turns: int
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Rates of ``once``, which returns a number of sequences, by form; and what to know of them."""
    rates: dict[str, list[float]] = {form: [] for form in FORMS}
    shares = []
    for turn in range(turns):
        load = ForeignLoad()
        for form in FORMS if turn % 2 else reversed(FORMS):
            start = time.perf_counter()
            sequences = once(form)
            rates[form].append(sequences / (time.perf_counter() - start))
        shares.append(load.share())
    return rates, {"sequences": sequences, "others_share_of_machine": shares}


def _epoch(order: TrainingOrder) -> range:
    return range(order.batches_in_an_epoch)


def _of_each_length(batches: Iterable[Batch]) -> Iterable[Batch]:
    """The first batch of each number of positions."""
    return {batch["input_ids"].shape[1]: batch for batch in batches}.values()


def _result(name: str, value: float, unit: str, config: Config) -> Result:
    return {"name": name, "subject": "ours", "value": value, "unit": unit, "config": config}


def measure() -> None:
    """Runs the benchmark of the flags."""
    values = flags.FLAGS
    seeds = parse_seeds(values.seeds)
    for name, given, known in (("tasks", values.tasks, TASKS), ("parts", values.parts, PARTS)):
        unknown = [one for one in given if one not in known]
        if unknown:
            raise UserError(f"--{name}: {unknown[0]!r} is none of {', '.join(known)}.")
    network = network_from_flags(BERT_BASE)
    small = _network_to_fine_tune() if SCORES in values.parts else None
    for name in values.tasks:
        for flag in _FILES[name]:
            _given(flag)
    results: list[Result] = []
    for case in _cases():
        for part in values.parts:
            if part == FILL:
                found = fill_results(case, *_orders(case, None), _config(case))
            elif part == SPEED:
                found = _measure_speed(case, network)
            else:
                found = _measure_scores(case, small, seeds)
            for result in found:
                print_result(result)
            results += found
    if values.json:
        write_json(values.json, results)
        print(f"the results are in {values.json}")


def _cases() -> Iterable[Case]:
    """The tasks of --tasks, each read when its turn comes."""
    from benchmarks.padding_tasks import SentenceCase, SpanCase

    values = flags.FLAGS
    vocab_file = require_file(values.vocab_file, flag="vocab_file")
    work_dir = make_output_dir(values.work_dir, flag="work_dir")
    tokenizer = load_tokenizer(vocab_file=vocab_file, do_lower_case=True)
    for name in values.tasks:
        if name != SQUAD:
            yield SentenceCase(
                name,
                Path(values.glue_dir),
                tokenizer=tokenizer,
                max_seq_length=values.glue_seq_length,
                batch_size=values.glue_batch_size,
            )
            continue
        train_file = require_file(values.squad_train_file, flag="squad_train_file")
        dev_file = require_file(values.squad_predict_file, flag="squad_predict_file")
        if values.predict_questions:
            cut = work_dir / f"{dev_file.stem}-{values.predict_questions}.json"
            dev_file = cut_squad(dev_file, values.predict_questions, cut)
        yield SpanCase(
            train_file,
            dev_file,
            vocab_file=vocab_file,
            work_dir=work_dir,
            max_seq_length=values.squad_seq_length,
            batch_size=values.squad_batch_size,
        )


def _given(name: str) -> str:
    if not flags.FLAGS[name].value:
        raise UserError(f"--{name} is missing; give it, or leave out what needs it.")
    return flags.FLAGS[name].value


def _network_to_fine_tune() -> BertConfig:
    config = model_files(_given("init_checkpoint")).config
    if config is None:
        raise UserError("--init_checkpoint has no configuration beside it; give a model directory.")
    return config


def _orders(
    case: Case, sequences: int | None, *, seed: int = 1
) -> tuple[dict[str, TrainingOrder], dict[str, PredictionOrder]]:
    """The batches of training and prediction by form, of so many sequences or of all."""
    from benchmarks.padding_runs import PredictionOrder, TrainingOrder

    train, dev = case.train, case.dev
    if sequences is not None:
        train, dev = train.spread(sequences), dev.spread(sequences)
    by_length = {name: form.by_length for name, form in FORMS.items()}
    return (
        {f: TrainingOrder(case, train, by_length=b, seed=seed) for f, b in by_length.items()},
        {f: PredictionOrder(case, dev, by_length=b) for f, b in by_length.items()},
    )


def _measure_speed(case: Case, network: BertConfig) -> list[Result]:
    from benchmarks.padding_runs import TrainedNetwork, Training

    values = flags.FLAGS
    config = {**_config(case), "network": network.to_dict()}
    print(f"{case.name}: {values.turns} turns of training and of prediction", flush=True)
    # Its rate is of no interest, but no update may be out of the schedule.
    training = Training(steps=1 << 20)
    with contextlib.ExitStack() as stack:
        built = {
            skips: stack.enter_context(
                TrainedNetwork(case, network, training, skip_padding=skips, **_session())
            )
            for skips in (False, True)
        }
        return speed_results(
            case,
            {name: built[form.skip_padding] for name, form in FORMS.items()},
            *_orders(case, values.sequences),
            turns=values.turns,
            config=config,
        )


def _measure_scores(case: Case, network: BertConfig, seeds: Sequence[int]) -> list[Result]:
    from benchmarks.padding_runs import TrainedNetwork, Training

    values = flags.FLAGS
    examples = case.train.spread(values.score_sequences)
    steps = max(1, round(len(examples.lengths) * values.num_train_epochs / case.batch_size))

    def fine_tuned(form: str, seed: int) -> TrainedNetwork:
        print(f"{case.name}: {steps} updates of a training {form}, seed {seed}", flush=True)
        training = Training(steps, values.learning_rate, seed)
        checkpoint = Path(values.init_checkpoint)
        skips = FORMS[form].skip_padding
        built = TrainedNetwork(
            case, network, training, checkpoint=checkpoint, skip_padding=skips, **_session()
        )
        built.train(_orders(case, values.score_sequences, seed=seed)[0][form], steps)
        return built

    names = ("init_checkpoint", "num_train_epochs", "learning_rate")
    config = {
        **_config(case),
        **{name: values[name].value for name in names},
        "trained_on": len(examples.lengths),
        "predicted": len(case.dev.lengths),
        "precision": values.precision,
    }
    return score_results(case, fine_tuned, _orders(case, None)[1], seeds=seeds, config=config)


def _session() -> dict[str, Any]:
    values = flags.FLAGS
    threads = values.threads or environment.available_cores()
    return {"precision": values.precision, "threads": threads}


def _config(case: Case) -> dict[str, Any]:
    return {
        "max_seq_length": case.max_seq_length,
        "batch_size": case.batch_size,
        "threads": _session()["threads"],
        **describe_machine(),
    }


def define_flags() -> None:
    """Defines the flags of ``python -m benchmarks.padding``."""
    flags.DEFINE_list("tasks", list(TASKS), f"Of {', '.join(TASKS)}.")
    flags.DEFINE_list("parts", list(PARTS), f"What to measure, of {', '.join(PARTS)}.")
    flags.DEFINE_string("squad_train_file", None, "SQuAD JSON to train on.")
    flags.DEFINE_string("squad_predict_file", None, "SQuAD JSON to answer.")
    flags.DEFINE_integer("predict_questions", None, "Answer so many, spread over the file.")
    flags.DEFINE_string("glue_dir", None, "Directory with a directory for each case of GLUE.")
    flags.DEFINE_string("vocab_file", None, "Uncased WordPiece vocabulary.", required=True)
    flags.DEFINE_string("work_dir", None, "Where records are kept.", required=True)
    flags.DEFINE_string("bert_config_file", None, "Network of the speed; BERT-base if not given.")
    flags.DEFINE_string("init_checkpoint", None, "Model directory to fine-tune for the scores.")
    flags.DEFINE_integer("squad_seq_length", 384, "Positions of padded windows.", lower_bound=8)
    flags.DEFINE_integer("squad_batch_size", 8, "Windows of a batch.", lower_bound=1)
    flags.DEFINE_integer("glue_seq_length", 128, "Positions of padded sentences.", lower_bound=8)
    flags.DEFINE_integer("glue_batch_size", 32, "Sentences of a batch.", lower_bound=1)
    flags.DEFINE_integer("sequences", 512, "Sequences of a turn, for the speed.", lower_bound=1)
    flags.DEFINE_integer("turns", 5, "Turns of all forms, for the speed.", lower_bound=1)
    flags.DEFINE_integer("score_sequences", 4000, "Sequences to train on, for the scores.")
    flags.DEFINE_float("num_train_epochs", 2.0, "Passes over them.", lower_bound=0.0)
    flags.DEFINE_float("learning_rate", 5e-5, "Of the fine-tuning, at its peak.")
    flags.DEFINE_string("seeds", "1,2", "Of the fine-tuning, commas between them.")
    flags.DEFINE_string("precision", "auto", "As in run_squad.py.")
    flags.DEFINE_integer("threads", None, "Cores to use; all if not given.", lower_bound=1)
    flags.DEFINE_string("json", None, "Where to write the results.")


if __name__ == "__main__":
    run_benchmark(define_flags, measure)
