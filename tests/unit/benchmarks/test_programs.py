"""Whole runs of the programs on networks that take a moment, and what they refuse."""

from __future__ import annotations

import json

import pytest

from tests.helpers.programs import run
from tests.helpers.small_span_model import CONFIG, TEXT, VOCABULARY

STEP = "--batch_size=2 --threads=1 --turns=1"
PEERS = "--retries=0 --subjects=ours-fp32,transformers-fp32-malloc,limit-fp32 --steps=1"
RUNS = [
    # program, flags, names of some of the results
    ("step", f"{STEP} {PEERS} --seq_length=16 --predictions=2 --accumulation_steps=2",
     ["pretraining step", "pretraining step, ours-fp32 to limit-fp32", "pretraining, start"]),
    ("step", f"--task=fine-tuning {STEP} {PEERS} --seq_length=16", ["fine-tuning step"]),
    ("step", f"--task=distillation {STEP} --subjects=ours-fp32-cached-teacher --retries=0 "
     "--seq_length=16 --predictions=2 --steps=1", ["distillation step"]),
    ("inference", "--batch_sizes=1,2 --repetitions=2 --turns=1 --retries=0 --threads=1 "
     "--subjects=ours-fp32,transformers-fp32 --seq_length=16",
     ["prediction, batch of 2", "prediction, batch of 1, p99"]),
    ("inference", "--batch_sizes=2 --squad_file={squad} --vocab_file={vocab} --repetitions=1 "
     "--turns=1 --retries=0 --threads=1 --seq_length=64 --subjects=ours,ours-padded",
     ["prediction, batch of 2, ours to ours-padded"]),
    ("fastest_setting", f"{STEP} --seq_length=8 --predictions=2 --layers=1", ["auto to auto"]),
    ("memory", "--threads=1 --lengths=16 --tokens=32,64 --steps=1 --tries=0 --limit_gib=8 "
     "--subjects=ours-fp32-recompute", ["peak memory", "largest batch"]),
    ("step_profile", "--batch_size=2 --threads=1 --seq_length=16 --predictions=2 --steps=2 "
     "--precision=fp32", ["products", "optimizer and clip", "dropout", "all"]),
    ("studies.hook_cost", f"{STEP} --seq_length=12 --predictions=2 --optimizer_type=lamb",
     ["with_batch_to_plain", "with_summary_to_plain"]),
    ("studies.padding", "--squad_train_file={squad} --squad_predict_file={squad} --work_dir={work} "
     "--vocab_file={vocab} --tasks=squad --squad_seq_length=64 --squad_batch_size=2 --sequences=4 "
     "--turns=1 --threads=1",
     ["squad, training, by length to padded", "squad, prediction, filled positions, by length"]),
]  # fmt: skip
WITHOUT_NETWORK = [
    ("data_prep", "--input_file={text} --vocab_file={vocab} --turns=1 --retries=0 "
     "--subjects=ours-1-worker,limit-tokenizer,ours-sentences-1-worker,limit-splitter", []),
    ("corpus_sizes", "--sizes_mb=1 --num_workers=1 --source=dump --directory={work}2 "
     "--vocab_size=1000", []),
    ("input_pipeline", "--input_file={records} --batch_size=4 --seconds=0.1 "
     "--training_sequences_per_second=2", []),
]  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory, record_maker):
    """Paths by the names that flags have in braces."""
    directory = tmp_path_factory.mktemp("files")
    network = {**CONFIG.to_dict(), "initializer_range": 0.02}
    answer = {"text": TEXT[:4], "answer_start": 0}
    qas = [{"id": f"q{n}", "question": "Who? " * (n + 1), "answers": [answer]} for n in range(4)]
    squad = {
        "version": "1.1",
        "data": [{"title": "t", "paragraphs": [{"context": TEXT, "qas": qas}]}],
    }
    contents = {
        "network": json.dumps(network),
        "squad": json.dumps(squad),
        "vocab": "".join(f"{entry}\n" for entry in VOCABULARY),
        "text": f"{TEXT}\n{TEXT}\n\n" * 20,
    }
    for name, content in contents.items():
        (directory / name).write_text(content)
    record_maker.write(directory / "records" / "a.tfrecord", 30, masked=True)
    record_maker.write_manifest(directory / "records")
    return {name: directory / name for name in (*contents, "records", "work")}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("program", "flags", "names"), [*RUNS, *WITHOUT_NETWORK])
def test_a_whole_run(program, flags, names, files, tmp_path):
    given = flags.format(**files).split() + [f"--json={tmp_path}/results.json"]
    if names:
        given.append(f"--bert_config_file={files['network']}")
    run("-m", f"benchmarks.{program}", *given)
    results = json.loads((tmp_path / "results.json").read_text())
    assert all(set(r) == {"name", "subject", "value", "unit", "config"} for r in results)
    assert all(r["value"] > 0 for r in results if r["unit"] in ("sequences/s", "MB/s", "ms"))
    assert all({"cpu", "cpu_features", "cores"} <= set(r["config"]) for r in results)
    assert set(names) <= {r["name"] for r in results}
    # Ours and peers start from weights near zero: the loss is that of guessing.
    steps = [r["config"] for r in results if r["name"].endswith(" step")]
    losses = [config["loss"] for config in steps if config.get("loss")]
    assert not losses or max(losses) == pytest.approx(min(losses), rel=0.1)


@pytest.mark.parametrize(
    ("program", "flags", "sentence"),
    [
        ("step", "--subjects=ours,google-bert-amp", "--subjects: google-bert-amp needs --google_"),
        ("step", "--google_bert_dir=/none", "--google_bert_dir: /none/tokenization.py does not"),
        ("step", "--seq_length=999", "--seq_length=999 is more than the network's 512"),
        ("step", "--predictions=200", "--predictions=200 is more than --seq_length"),
        ("step", "--task=fine-tuning --predictions=2", "--predictions is for --task=pretraining"),
        ("step", "--restrict_ce_to_mask", "--restrict_ce_to_mask is for --task=distillation"),
        ("inference", "--squad_file=none.json", "--squad_file needs --vocab_file"),
        ("update_time", "--bert_config_file={network} --cases=x", "--cases: 'x' is not KIND"),
        ("studies.delayed_allreduce", "--links=fast", "--links: 'fast' is neither a rate"),
        ("studies.scaling_model", "--hosts=1,2", "--hosts=1,2: one host sends nothing"),
    ],
)
def test_bad_input_is_one_sentence(program, flags, sentence, files):
    done = run("-m", f"benchmarks.{program}", *flags.format(**files).split(), check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {sentence}")
    assert done.stderr.count("\n") == 1
