"""Compares the time of a pseudo-perplexity here with the loops that others use for scoring.

    python -m benchmarks.scoring --input_file=wikitext-2-valid.tokens --vocab_file=vocab.txt

Every token of ``--sequences`` texts, spread over the file, is masked in turn. Ours is the code of
run_evaluation.py. The peers are loops with transformers on torch, written here after public tools
that need old packages: ``transformers-...`` puts the copies of a sentence into batches of up to
``--peer_batch_size`` and computes logits at all positions, as mlm-scoring and minicons do;
``naive-...`` has batches of one copy. The weights are random, since they do not affect the time.
The subjects and the procedure are those of benchmarks.step.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from benchmarks.results import Result
from benchmarks.script import (
    REQUIRED,
    check_length,
    network_from_flags,
    run_benchmark,
    start_tensorflow,
    threads_from_flags,
)
from benchmarks.speed.comparison import Figures, compare, comparison_flags
from benchmarks.speed.load import ForeignLoad
from benchmarks.speed.process import Found
from benchmarks.speed.steps import Job
from benchmarks.speed.subjects import BERT_BASE, MALLOC, Subject, by_name
from bert_tf.config.masking import MaskingOptions
from bert_tf.durable.manifest import SPECIAL_NAMES
from bert_tf.input.masking import MaskingSettings
from bert_tf.tasks.scoring.sequences import TokenSequence, read_texts, sequences_of_texts
from bert_tf.tasks.scoring.settings import PSEUDO, TextSettings
from bert_tf.tasks.scoring.work import Work
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.files import require_file

_MODULE = "benchmarks.scoring"
_MIB = 1 << 20


def _peers(precision: str) -> list[Subject]:
    settings = {"precision": precision}
    return [
        Subject(f"transformers-{precision}", _MODULE, settings),
        Subject(f"transformers-{precision}-malloc", _MODULE, settings, MALLOC),
        Subject(f"naive-{precision}", _MODULE, {**settings, "one_by_one": True}),
    ]


SUBJECTS = by_name(
    Subject("ours", _MODULE, {"precision": "auto", "ours": True}),
    Subject("ours-fp32", _MODULE, {"precision": "fp32", "ours": True}),
    *_peers("fp32"),
    *_peers("bf16"),
)


@dataclasses.dataclass(frozen=True)
class ScoringJob(Job):
    """The task for all subjects.

    Attributes:
      sequences: the tokens of each sequence, with [CLS] and [SEP].
      mask_id: id of [MASK].
      batch_tokens: tokens in our batches.
      peer_batch_size: maximum number of copies in a peer's batch.
      threads: cores to use.
    """

    sequences: tuple[tuple[int, ...], ...]
    mask_id: int
    batch_tokens: int
    peer_batch_size: int
    threads: int

    @property
    def tokens(self) -> int:
        """Number of tokens to score."""
        return sum(len(sequence) - 2 for sequence in self.sequences)


def score(request: Mapping[str, Any]) -> dict[str, Any]:
    """Times the scoring of all tokens, after that of the longest and the shortest sequence."""
    job, settings = ScoringJob.from_json(request), request["settings"]
    run = _ours(job, settings) if settings.get("ours") else _peer(job, settings)
    in_order = sorted(job.sequences, key=len)
    run([in_order[0], in_order[-1]])
    load, started, cpu_started = ForeignLoad(), time.perf_counter(), time.process_time()
    run(job.sequences)
    return {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu_started,
        "foreign_share": load.share(),
    }


def _ours(job: ScoringJob, settings: Mapping[str, Any]):
    start_tensorflow()
    from bert_tf.inference.predictor import Predictor
    from bert_tf.inference.settings import chosen_options
    from bert_tf.tasks.scoring.run import LOSSES, ScoringTask

    options, _ = chosen_options(job.network, precision=settings["precision"])
    predictor = Predictor(
        ScoringTask(job.network),
        None,
        options=options,
        threads=job.threads,
    )
    masking = MaskingSettings(
        MaskingOptions(),
        job.network.vocab_size,
        {**dict.fromkeys(SPECIAL_NAMES, 0), "mask": job.mask_id},
    )

    def run(sequences) -> None:
        made = [_token_sequence(number, ids) for number, ids in enumerate(sequences)]
        work = Work(
            made, masking, metrics=(PSEUDO,), batch_tokens=job.batch_tokens, num_draws=1, seed=0
        )
        for batch in work.batches:
            inputs = work.inputs(batch)
            inputs.summed(predictor.run(inputs.features)[LOSSES])

    return run


def _token_sequence(number: int, ids) -> TokenSequence:
    ids = np.array(ids, np.int32)
    is_scored = np.ones(len(ids), bool)
    is_scored[[0, -1]] = False
    return TokenSequence(number, ids, np.zeros_like(ids), is_scored)


def _peer(job: ScoringJob, settings: Mapping[str, Any]):
    import torch
    import transformers

    from benchmarks.speed.huggingface import autocast, peer_config

    torch.set_num_threads(job.threads)
    model = transformers.BertForMaskedLM(peer_config(job.network)).eval()
    size = 1 if settings.get("one_by_one") else job.peer_batch_size

    def run(sequences) -> None:
        with torch.inference_mode(), autocast(settings["precision"]):
            for sequence in sequences:
                ids = torch.tensor(sequence)
                places = torch.arange(1, len(ids) - 1)
                copies = ids.repeat(len(places), 1)
                copies[torch.arange(len(places)), places] = job.mask_id
                for part, chosen in zip(copies.split(size), places.split(size)):
                    logits = model(part).logits[torch.arange(len(part)), chosen].float()
                    scores = torch.log_softmax(logits, dim=-1)
                    scores.gather(1, ids[chosen][:, None]).double().sum().item()

    return run


def measure() -> Iterator[Result]:
    """Runs the comparison given by the flags."""
    values = flags.FLAGS
    network = network_from_flags(BERT_BASE)
    check_length("seq_length", values.seq_length, network)
    tokenizer = TokenizerFiles(require_file(values.vocab_file, flag="vocab_file")).load()
    texts = read_texts([Path(values.input_file)], TextSettings(), flag="input_file")
    made = sequences_of_texts(
        texts, tokenizer, TextSettings(), max_seq_length=values.seq_length, seed=0
    ).sequences
    kept = min(values.sequences, len(made))
    job = ScoringJob(
        network=network,
        sequences=tuple(
            tuple(made[number * len(made) // kept].ids.tolist()) for number in range(kept)
        ),
        mask_id=tokenizer.mask_id,
        batch_tokens=values.batch_tokens,
        peer_batch_size=values.peer_batch_size,
        threads=threads_from_flags(),
    )
    config = {
        "network": network.to_dict(),
        "sequences": kept,
        "tokens": job.tokens,
        "mean_length": float(np.mean([len(sequence) for sequence in job.sequences])),
        "batch_tokens": job.batch_tokens,
        "peer_batch_size": job.peer_batch_size,
        "threads": job.threads,
    }

    def figures(found: Found) -> Figures:
        return {
            "pseudo-perplexity": (job.tokens / found["seconds"], "tokens/s"),
            # In one thread, which never waits for others, this holds on a busy machine, too.
            "a CPU second": (job.tokens / found["cpu_seconds"], "tokens"),
            "peak memory": (found["peak_memory_bytes"] / _MIB, "MiB"),
        }

    yield from compare(SUBJECTS, job.to_json(), "score", figures, config=config)


FLAGS = {
    **comparison_flags(SUBJECTS, "threads", "bert_config_file", "seq_length"),
    "input_file": (REQUIRED, "Texts, one per line."),
    "vocab_file": (REQUIRED, "Uncased WordPiece vocabulary, no larger than the network's."),
    "sequences": (20, "Sequences to score.", 1),
    "batch_tokens": (2048, "Tokens in our batches.", 1),
    "peer_batch_size": (32, "Maximum number of copies in a peer's batch.", 1),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, measure)
