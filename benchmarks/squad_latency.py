"""How long a span model takes for a batch, as percentiles, beside the same network elsewhere.

    python -m benchmarks.squad_latency --bert_config_file=recipes/bert_base.json --peer=transformers

The network is that of ``--model_dir``, or of ``--bert_config_file`` with random weights: the time
does not depend on them. Each batch size, length and precision is measured in rounds, and in a round
both sides take their turn, after batches that are not counted. ``--json`` also writes the results.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable

import numpy as np
from absl import flags

from benchmarks.machine import describe_machine
from benchmarks.script import run_benchmark
from bert_tf import environment
from bert_tf.checkpoint.model_files import model_files
from bert_tf.config.bert_config import BertConfig
from bert_tf.errors import UserError
from bert_tf.files import require_file, write_json
from bert_tf.tasks.span_model import INPUTS, SpanModel

Batch = Mapping[str, np.ndarray]
Predict = Callable[[Batch], object]

PERCENTILES = (50, 90, 95, 99)
PRECISIONS = ("fp32", "bf16")
_NO_PEER, _TRANSFORMERS = "none", "transformers"

# transformers' names of the two forms of GELU.
_PEER_ACTIVATIONS = {"gelu": "gelu_new", "gelu_tanh": "gelu_new", "gelu_erf": "gelu"}


@dataclasses.dataclass(frozen=True)
class Shape:
    """What one measurement is of."""

    batch_size: int
    seq_length: int
    precision: str


@dataclasses.dataclass(frozen=True)
class Plan:
    """How often a batch is run.

    Attributes:
      rounds: turns of each side.
      repetitions: measured batches of a turn.
      warmup: batches before them in each turn.
    """

    rounds: int
    repetitions: int
    warmup: int


def make_batch(shape: Shape, vocab_size: int) -> dict[str, np.ndarray]:
    """Sequences of full length, a sixth of each being the question; int32 [B, S]."""
    generator = np.random.default_rng(0)
    size = shape.batch_size, shape.seq_length
    segments = np.zeros(size, np.int32)
    segments[:, shape.seq_length // 6 :] = 1
    return {
        "input_ids": generator.integers(vocab_size, size=size, dtype=np.int32),
        "input_mask": np.ones(size, np.int32),
        "segment_ids": segments,
    }


def measure(subjects: Mapping[str, Predict], batch: Batch, plan: Plan) -> dict[str, np.ndarray]:
    """Seconds of every measured batch of each subject, taken in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(plan.rounds):
        for name, predict in subjects.items():
            for _ in range(plan.warmup):
                predict(batch)
            for _ in range(plan.repetitions):
                start = time.perf_counter()
                predict(batch)
                seconds[name].append(time.perf_counter() - start)
    return {name: np.asarray(taken) for name, taken in seconds.items()}


def summarise(
    seconds: np.ndarray, shape: Shape, *, subject: str, config: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Percentiles in milliseconds and sequences a second, as results."""
    values = {f"latency p{p}": (float(np.percentile(seconds, p)) * 1e3, "ms") for p in PERCENTILES}
    values["throughput"] = (shape.batch_size / float(seconds.mean()), "sequences/s")
    described = {**dataclasses.asdict(shape), "measured_batches": len(seconds), **config}
    return [
        {"name": name, "subject": subject, "value": value, "unit": unit, "config": described}
        for name, (value, unit) in values.items()
    ]


def our_predictor(model: SpanModel) -> Predict:
    """Runs the network and fetches its logits, without the choice of candidates."""
    logits = model.outputs.start_logits, model.outputs.end_logits

    def predict(batch: Batch) -> object:
        return model.session.run(logits, {model.inputs[name]: batch[name] for name in INPUTS})

    return predict


def transformers_predictor(config: BertConfig, precision: str, threads: int) -> Predict:
    """The same network of transformers, on torch; bf16 is its autocast."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    settings = {**config.to_dict()}
    settings["hidden_act"] = _PEER_ACTIVATIONS.get(config.hidden_act, config.hidden_act)
    network = transformers.BertForQuestionAnswering(transformers.BertConfig(**settings)).eval()

    def predict(batch: Batch) -> object:
        with torch.inference_mode(), torch.autocast("cpu", enabled=precision == "bf16"):
            output = network(
                input_ids=torch.from_numpy(batch["input_ids"]),
                attention_mask=torch.from_numpy(batch["input_mask"]),
                token_type_ids=torch.from_numpy(batch["segment_ids"]),
            )
        return output.start_logits.float().numpy(), output.end_logits.float().numpy()

    return predict


def _results(
    network: BertConfig,
    checkpoint: str | None,
    shapes: Iterable[Shape],
    plan: Plan,
    *,
    peer: str,
    threads: int,
) -> Iterator[list[dict[str, Any]]]:
    """The results of each shape and subject; shapes of one precision stand together."""
    sizes = {
        name: getattr(network, name)
        for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    }
    config = {**sizes, "threads": threads, **describe_machine()}
    for precision, of_precision in itertools.groupby(shapes, key=lambda shape: shape.precision):
        model = SpanModel(network, checkpoint, precision=precision, threads=threads)
        subjects = {"ours": our_predictor(model)}
        if peer == _TRANSFORMERS:
            subjects[peer] = transformers_predictor(network, precision, threads)
        for shape in of_precision:
            taken = measure(subjects, make_batch(shape, network.vocab_size), plan)
            for subject, seconds in taken.items():
                yield summarise(seconds, shape, subject=subject, config=config)


def run() -> None:
    """Runs the benchmark from its flags."""
    values = flags.FLAGS
    network = _network(values.model_dir, values.bert_config_file)
    plan = Plan(values.rounds, values.repetitions, values.warmup)
    batch_sizes = _numbers(values.batch_sizes, flag="batch_sizes")
    lengths = _numbers(values.seq_lengths, flag="seq_lengths")
    for length in lengths:
        if length > network.max_position_embeddings:
            raise UserError(
                f"--seq_lengths: {length} is more than the {network.max_position_embeddings} "
                "positions of the model; leave it out."
            )
    shapes = [
        Shape(batch_size, length, precision)
        for precision in values.precisions
        for length in lengths
        for batch_size in batch_sizes
    ]
    environment.quiet_tensorflow(verbose=False)
    results = []
    heads = "".join(f"{f'p{p} ms':>9}" for p in PERCENTILES)
    print(f"{'subject':14}{'precision':>9}{'S':>5}{'B':>4}{heads}{'sequences/s':>13}", flush=True)
    for rows in _results(
        network,
        values.model_dir,
        shapes,
        plan,
        peer=values.peer,
        threads=values.threads or environment.available_cores(),
    ):
        results += rows
        config = rows[0]["config"]
        figures = "".join(f"{row['value']:9.1f}" for row in rows[:-1])
        print(
            f"{rows[0]['subject']:14}{config['precision']:>9}{config['seq_length']:5}"
            f"{config['batch_size']:4}{figures}{rows[-1]['value']:13.2f}",
            flush=True,
        )
    if values.json:
        write_json(values.json, results)


def _network(model_dir: str | None, bert_config_file: str | None) -> BertConfig:
    if bool(model_dir) == bool(bert_config_file):
        raise UserError("give one of --model_dir and --bert_config_file.")
    if bert_config_file:
        return BertConfig.from_json_file(require_file(bert_config_file, flag="bert_config_file"))
    config = model_files(model_dir).config
    if config is None:
        raise UserError(f"--model_dir={model_dir} has no bert_config.json; give another directory.")
    return config


def _numbers(values: Iterable[str], *, flag: str) -> list[int]:
    numbers = [int(value) if value.isdecimal() else 0 for value in values]
    if not numbers or min(numbers) < 1:
        raise UserError(f"--{flag}={','.join(values)}: give whole numbers from 1 on.")
    return numbers


def define_flags() -> None:
    """Defines the flags of ``python -m benchmarks.squad_latency``."""
    flags.DEFINE_string("model_dir", None, "A fine-tuned model.")
    flags.DEFINE_string("bert_config_file", None, "An architecture, for random weights.")
    flags.DEFINE_list("batch_sizes", ["1", "2", "4", "8", "16", "32"], "Sequences of a batch.")
    flags.DEFINE_list("seq_lengths", ["128", "384"], "Tokens of a sequence.")
    flags.DEFINE_multi_enum("precisions", list(PRECISIONS), PRECISIONS, "Precision of products.")
    flags.DEFINE_enum("peer", _NO_PEER, [_NO_PEER, _TRANSFORMERS], "Whom to compare with.")
    flags.DEFINE_integer("rounds", 2, "Turns of each side.", lower_bound=1)
    flags.DEFINE_integer("repetitions", 10, "Measured batches of a turn.", lower_bound=1)
    flags.DEFINE_integer("warmup", 2, "Batches before them that are not counted.", lower_bound=0)
    flags.DEFINE_integer("threads", None, "Cores to use; all if not given.", lower_bound=1)
    flags.DEFINE_string("json", None, "Where to write the results.")


if __name__ == "__main__":
    run_benchmark(define_flags, run)
