"""The demo's report: a comparison of perplexities, filled masks and the loss curve."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from bert_tf.config.masking import MaskingOptions
from bert_tf.durable.manifest import describe_vocabulary
from bert_tf.input.masking import MaskingSettings, example_keys, mask_batch
from bert_tf.model.config import BertConfig
from bert_tf.records.layouts import PRETRAINING_UNMASKED
from bert_tf.records.tfrecord import RecordSet
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util import environment
from bert_tf.util.files import expand_record_files

NUM_EXAMPLES = 10


def report(output_dir: Path, *, config_file: Path, data: Path, model: Path) -> dict[str, float]:
    """Prints the report and returns the metrics of ``summary.json``."""
    environment.prepare_environment(verbose=False)
    config = BertConfig.from_json_file(config_file)
    tokenizer = TokenizerFiles(data / "vocabulary" / "vocab.txt").load()
    evaluations = _read_lines(model / "eval_log.jsonl")
    untrained, trained = evaluations[0], evaluations[-1]
    counts = token_counts(_records(data, "train"), config.vocab_size)
    held_out = _records(data, "heldout")
    figures = {
        "unigram_perplexity": unigram_perplexity(counts, held_out, tokenizer),
        "untrained_perplexity": untrained["masked_lm_perplexity"],
        "trained_perplexity": trained["masked_lm_perplexity"],
    }
    figures["trained_beats_unigram_by"] = (
        figures["unigram_perplexity"] / figures["trained_perplexity"]
    )
    show_masks(held_out, tokenizer, config, checkpoint=model)
    curve = output_dir / "loss.png"
    plot_curve(
        _read_lines(model / "log.jsonl"), evaluations, figures["unigram_perplexity"], path=curve
    )
    print("\nHeld-out perplexity of masked tokens (lower is better)")
    print(f"  unigram model      {figures['unigram_perplexity']:10.1f}")
    print(f"  untrained network  {figures['untrained_perplexity']:10.1f}")
    print(
        f"  trained network    {figures['trained_perplexity']:10.1f}   "
        f"({figures['trained_beats_unigram_by']:.1f} times better than unigram)"
    )
    print(f"loss curve: {curve}")
    return figures


def _read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _records(data: Path, part: str) -> dict[str, np.ndarray]:
    """All records of ``train`` or ``heldout``: feature name -> array [N, L]."""
    records = RecordSet(expand_record_files(str(data / "records" / part), flag="text"))
    examples = [PRETRAINING_UNMASKED.decode(raw) for raw in records.read(range(len(records)))]
    return {name: np.stack([e[name] for e in examples]) for name in examples[0]}


def token_counts(records: dict[str, np.ndarray], vocab_size: int) -> np.ndarray:
    """The count of each id in the training records, float64 [vocab_size]."""
    used = records["input_ids"][records["input_mask"] == 1]
    return np.bincount(used, minlength=vocab_size).astype(np.float64)


def unigram_perplexity(
    counts: np.ndarray, held_out: dict[str, np.ndarray], tokenizer: Tokenizer
) -> float:
    """Perplexity of held-out tokens under their training frequencies, with add-one smoothing.

    Counts only tokens that can be masked, so that it is comparable with the perplexity of the
    network, which predicts a random sample of these.
    """
    counts = counts + 1
    for special in (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id):
        counts[special] = 0
    log_probabilities = np.log(counts / counts.sum(), where=counts > 0, out=np.zeros_like(counts))
    ids = held_out["input_ids"][held_out["input_mask"] == 1]
    return math.exp(-log_probabilities[ids[counts[ids] > 0]].mean())


def show_masks(
    held_out: dict[str, np.ndarray], tokenizer: Tokenizer, config: BertConfig, *, checkpoint: Path
) -> None:
    """Prints a masked word from each of ten held-out sequences with the model's guesses."""
    from bert_tf.tasks.pretraining.mask_filler import MaskFiller

    filler = MaskFiller(config, tokenizer, checkpoint)
    chosen = np.linspace(0, len(held_out["input_ids"]) - 1, NUM_EXAMPLES).astype(int)
    print("\nMasked words in held-out sentences, with the model's guesses")
    for index in chosen:
        length = int(held_out["input_mask"][index].sum())
        ids = held_out["input_ids"][index, :length].copy()
        settings = MaskingSettings(
            MaskingOptions(masked_lm_prob=1 / length, max_predictions_per_seq=1),
            config.vocab_size,
            describe_vocabulary(tokenizer).special_ids,
        )
        drawn = mask_batch(
            ids[None],
            np.array([length]),
            keys=example_keys(0, np.array([index])),
            settings=settings,
        )
        position = int(drawn.positions[0, 0])
        truth = tokenizer.convert_ids_to_tokens([int(ids[position])])[0]
        ids[position] = tokenizer.mask_id
        segment_ids = held_out["segment_ids"][index, :length].tolist()
        [guesses] = filler.fill(ids.tolist(), segment_ids=segment_ids, top=3)
        window = ids[max(0, position - 12) : position + 12].tolist()
        guessed = ", ".join(f"{g.token} {g.probability:.2f}" for g in guesses)
        print(f"  ... {tokenizer.decode(window)} ...")
        print(f"      truth: {truth}   guesses: {guessed}")


def plot_curve(steps, evaluations, unigram: float, *, path: Path) -> None:
    """Plots training and held-out loss over the steps, with the unigram model as a line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.plot(
        [s["step"] for s in steps],
        [s["masked_lm_loss"] for s in steps],
        label="training",
    )
    axes.plot(
        [e["step"] for e in evaluations],
        [e["masked_lm_loss"] for e in evaluations],
        marker="o",
        label="held-out",
    )
    axes.axhline(math.log(unigram), color="grey", linestyle="--", label="unigram model")
    axes.set_xlabel("step (optimizer updates)")
    axes.set_ylabel("masked-LM loss (nats)")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
