"""The demo: from raw text to a pre-trained model, with the commands that a user would type.

Called by ``make demo``. Every step is a command of the toolkit, printed before it runs; a
comparison of perplexities follows at the end. Nothing is downloaded: the text is the documentation
of Python and of the packages that the toolkit needs, or the files given by ``--text`` (``make demo
DEMO_TEXT=path``).
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bert_tf.durable.manifest import read_manifest  # noqa: E402
from bert_tf.model_directory.run_record import read_run_record  # noqa: E402
from bert_tf.util.errors import exit_on_user_error  # noqa: E402
from bert_tf.util.files import expand_input_files, write_json  # noqa: E402
from tools.demo import report  # noqa: E402

MODEL = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 512,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    # With weights larger than BERT's 0.02, such a narrow network starts to learn much sooner.
    "initializer_range": 0.08,
}
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MAX_VOCAB_SIZE = 6000
BYTES_PER_WORD = 100
# The training of recipes/fast_tiny_one_cpu.flags.
LENGTH = "--max_seq_length=64"
RECIPE = [
    "--nsp=false",
    LENGTH,
    "--masked_lm_prob=0.3",
    "--max_predictions_per_seq=20",
    "--train_batch_size=32",
    "--optimizer_type=muon",
    "--adam_bias_correction",
    "--learning_rate=4e-3",
]


def run(module: list[str], *flags: str) -> None:
    """Prints and runs a command of the toolkit; exits if it fails.

    A signal to stop is passed on, once: the command saves its work, which is waited for. A second
    one ends it at once.
    """
    print(f"\n$ python {' '.join(map(shlex.quote, [*module, *flags]))}", flush=True)
    received: list[int] = []
    running: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int) -> None:
        for process in running:
            process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    def stop(number: int, _: object) -> None:
        received.append(number)
        pass_on(number)

    # What is ignored, such as by nohup, stays so.
    handled = [number for number in STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in handled}
    try:
        # In a session of its own, so that Ctrl-C in a terminal does not reach it a second time.
        process = subprocess.Popen(
            [sys.executable, *module, *flags], cwd=ROOT, start_new_session=True
        )
        running.append(process)
        for number in received[:]:  # while it was started
            pass_on(number)
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        print("demo: stopped; run it again to continue from here", file=sys.stderr, flush=True)
        sys.exit(128 + received[0])
    if status:
        sys.exit(f"demo: the command above failed (status {status}).")


def vocab_size_for(text: str) -> int:
    """A vocabulary size for which the text contains enough distinct words."""
    size = sum(path.stat().st_size for path in expand_input_files(text, flag="text"))
    return min(MAX_VOCAB_SIZE, max(BYTES_PER_WORD, size // BYTES_PER_WORD))


def put_aside(directory: Path, reason: str) -> None:
    """Renames a directory of finished work, which took time, to a name that is free."""
    number = 1
    while (aside := directory.with_name(f"{directory.name}-{number}")).exists():
        number += 1
    directory.rename(aside)
    print(f"demo: {reason}: the earlier one is kept in {aside}", flush=True)


def put_model_of_another_text_aside(model: Path, data: Path) -> None:
    """Makes place for a new model if the text has changed; with the same text, the run resumes."""
    record = read_run_record(model)
    if record is None:
        return
    manifest = read_manifest(data / "records" / "train")
    if record.vocabulary_digest != manifest.vocabulary.digest:
        put_aside(model, "the text has changed, so a new model is trained")


def main(output_dir: Path, text: str | None, steps: int) -> None:
    """Runs every step, then prints the report."""
    start = time.monotonic()
    output_dir = output_dir.resolve()
    output_dir.mkdir(parents=True, exist_ok=True)
    if text is None:
        text = str(output_dir / "corpus")
        run(["-m", "tools.demo.corpus"], f"--output_dir={text}")
    data, model = output_dir / "data", output_dir / "model"
    config = output_dir / "bert_config.json"
    vocab_size = vocab_size_for(text)
    write_json(config, {**MODEL, "vocab_size": vocab_size})
    run(
        ["-m", "data_prep.pipeline"],
        f"--input_file={text}",
        f"--output_dir={data}",
        "--heldout_fraction=0.02",
        f"--vocab_size={vocab_size}",
        "--masking=dynamic",
        "--nsp=false",
        "--pack_documents",
        "--dupe_factor=2",
        LENGTH,
    )
    put_model_of_another_text_aside(model, data)
    run(
        ["run_pretraining.py"],
        f"--bert_config_file={config}",
        f"--input_file={data / 'records' / 'train'}",
        f"--eval_file={data / 'records' / 'heldout'}",
        f"--output_dir={model}",
        "--do_train",
        "--do_eval",
        *RECIPE,
        "--eval_batch_size=64",
        f"--num_train_steps={steps}",
        f"--num_warmup_steps={steps // 10}",
        f"--save_checkpoints_steps={max(1, steps // 5)}",
        f"--eval_every_steps={max(1, steps // 5)}",
        "--display_loss_steps=100",
        "--precision=auto",
    )
    summary = report.report(output_dir, config_file=config, data=data, model=model)
    summary["seconds"] = round(time.monotonic() - start, 1)
    write_json(output_dir / "summary.json", summary)
    print(f"\nthe demo took {summary['seconds']:.0f} s; summary: {output_dir / 'summary.json'}")
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="From raw text to a pre-trained BERT.")
    parser.add_argument("--output_dir", type=Path, default=Path("demo"))
    parser.add_argument("--text", help="your own text: files, globs or directories")
    parser.add_argument("--steps", type=int, default=2400, help="optimizer updates")
    options = parser.parse_args()
    exit_on_user_error(main, options.output_dir, options.text, options.steps)
