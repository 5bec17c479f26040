"""Measures the gain of communicating once per update, and other costs of communication.

    python -m benchmarks.studies.delayed_allreduce --json=delayed_allreduce.json

On every link, the cases take turns in one job on two ranks, so that a ratio compares measurements
made side by side: sequences per second with one allreduce per update and with one after each micro
batch; gradients in float16; how much of the communication the backward pass hides; and BERT-base's
word embedding gradient as a whole table or as the rows of a batch. The links are those of network
namespaces, which need root; ``--links=loopback`` does not.

Brightics' study of BERT-base on 8 GPUs found a factor of 2.0 with 50 micro batches per update.

docs/howto/many_machines.md has the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from absl import flags

from benchmarks.communication import cases as kinds
from benchmarks.communication import model
from benchmarks.communication.cases import EMBEDDING_TABLE, Case
from benchmarks.communication.rank_jobs import LOOPBACK, Job, Measured, describe_link, run_on_link
from benchmarks.results import Result, printed, ratio_result, result, spread_result
from benchmarks.script import run_benchmark, shared_flags, whole_numbers
from bert_tf.model.config import BertConfig

RANKS = 2
# Large gradients relative to its computation, as on GPUs, in runs short enough to repeat; the ratio
# is measured on each link and printed first.
NETWORK = BertConfig(
    vocab_size=2000,
    hidden_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=1024,
    max_position_embeddings=512,
    type_vocab_size=2,
)
_WORDS, _WIDTH = EMBEDDING_TABLE
_EMBEDDING_BYTES = _WORDS * _WIDTH * 4
_ROW_BYTES = _WIDTH * 4 + 4  # with its index

_TOKENS = 12 * 384  # in a rank's fine-tuning batch
_TABLE, _ROWS = Case(kinds.EMBEDDING_DENSE, _TOKENS), Case(kinds.EMBEDDING_ROWS, _TOKENS)
_COMPUTE = Case(kinds.COMPUTE)
_UPDATE, _HALVED_UPDATE = Case(kinds.DELAYED), Case(kinds.DELAYED, 1, "fp16")
_COMMUNICATION, _HALVED = Case(kinds.COMMUNICATION), Case(kinds.COMMUNICATION, 1, "fp16")


def cases_of(accumulation_steps: Sequence[int]) -> list[Case]:
    """All cases to measure on a link; those to be compared are next to each other."""
    found = []
    for steps in accumulation_steps:
        found += [Case(kinds.EVERY_MICRO_BATCH, steps), Case(kinds.DELAYED, steps)]
    found += [_HALVED_UPDATE, _UPDATE, _COMPUTE, _COMMUNICATION, _HALVED, _TABLE, _ROWS]
    return list(dict.fromkeys(found))


def link_results(
    measured: Measured, job: Job, accumulation_steps: Sequence[int], config: dict[str, object]
) -> Iterator[Result]:
    """The results for one link, from the time of each case there."""
    seconds = measured.seconds
    config = {**config, **measured.details}
    for steps in accumulation_steps:
        delayed = seconds[Case(kinds.DELAYED, steps)]
        every = seconds[Case(kinds.EVERY_MICRO_BATCH, steps)]
        sequences = job.flags["micro_batch_size"] * steps * RANKS
        described = {**config, "accumulation_steps": steps}
        for name, taken in (("delayed", delayed), ("every micro batch", every)):
            rates = [sequences / second for second in taken]
            yield spread_result(f"{name}, {steps} micro batches", rates, "sequences/s", described)
        yield ratio_result(f"delayed to every, {steps} micro batches", every, delayed, described)
    for name, above, below in (
        ("communication to computation", _COMMUNICATION, _COMPUTE),
        ("float16 to float32, allreduce alone", _COMMUNICATION, _HALVED),
        ("float16 to float32, update of 1 micro batch", _UPDATE, _HALVED_UPDATE),
    ):
        yield ratio_result(name, seconds[above], seconds[below], config)
    delayed = seconds[_UPDATE]
    shares = map(model.hidden_share, delayed, seconds[_COMPUTE], seconds[_COMMUNICATION])
    yield spread_result("communication hidden by computation", list(shares), "share", config)
    yield from embedding_results(measured, config)


def embedding_results(measured: Measured, config: dict[str, object]) -> Iterator[Result]:
    """Bytes sent by a rank, and times, for both forms of the word embedding gradient."""
    ranks, rows = measured.details["ranks"], _TOKENS * _ROW_BYTES
    taken = measured.seconds[_TABLE], measured.seconds[_ROWS]
    sent = 2 * (ranks - 1) / ranks * _EMBEDDING_BYTES, (ranks - 1) * rows
    described = {**config, "tokens_of_a_rank": _TOKENS, "table_shape": EMBEDDING_TABLE}
    for form, seconds, num_bytes in zip(("table", "rows"), taken, sent):
        name = f"embedding gradient as {form}"
        yield result(f"{name}, sent by a rank", num_bytes / 1e6, "MB", described)
        yield spread_result(name, seconds, "s", described)
    yield ratio_result("embedding gradient, table to rows", *taken, described)
    most = model.rows_pay_up_to(_EMBEDDING_BYTES, rows)
    yield result("embedding gradient, ranks up to which rows are less", most, "ranks", described)


def run() -> Iterator[Result]:
    """Runs the benchmark given by its flags."""
    values = flags.FLAGS
    steps = whole_numbers("accumulation_steps")
    links = {link: describe_link(link) for link in values.links}
    job = Job.from_flags(NETWORK)
    config = job.described()
    for link, words in links.items():
        print(f"\n{words}, {RANKS} ranks", flush=True)
        measured = run_on_link(job, cases_of(steps), link)
        yield from printed(link_results(measured, job, steps, {**config, "link": words}))


FLAGS = {
    "links": (["1000", "10000", LOOPBACK], "Rate of each link in Mbit/s, or loopback."),
    "accumulation_steps": (["1", "4", "16", "50"], "Micro batches per update."),
    **shared_flags("bert_config_file", "micro_batch_size", "precision", "micro_batches_a_turn"),
    **shared_flags("json", seq_length=64, turns=3),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, run)
