"""Whole runs of the programs on networks that take a moment, and what they refuse."""

from __future__ import annotations

import json

import pytest

from benchmarks.classifier import PROGRAMS, ClassifierJob
from tests.helpers import tagging_files
from tests.helpers.programs import run
from tests.helpers.small_pretraining import stdlib_documentation
from tests.helpers.small_span_model import CONFIG, TEXT, VOCABULARY

NETWORK = "--bert_config_file={network}"
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
    ("classifier", "--model_dir={classifier} --input_file={text} --batch_sizes=1,2 --sequences=9 "
     "--turns=1 --retries=0 --threads=1 --seq_length=16 --subjects=ours,transformers",
     ["batch of 1", "batch of 2, p99", "batch of 1, ours to transformers"]),
]  # fmt: skip
TEXTS = "--input_file={text} --output_dir={work}"
CURVES = f"{TEXTS} --eval_file={{text}} {NETWORK}"
VARIANTS = ["initial", "general", "domain", "mixture", "domain-words", "mixture-words"]
TUNING = "--model_dir={encoder} --seeds=1,2 --epochs=1 --batch_size=8 --seq_length=16 --threads=1"
SCORES = ["score", "sequences_per_second, ours to transformers"]
RESUMED = [
    # study, flags, what it prints for each training, names of some of the results
    ("fine_tuning", f"{TUNING} --task=ner --train_file={{tags}}/train.txt "
     "--dev_file={tags}/dev.txt", "seed 1:", SCORES),
    ("fine_tuning", f"{TUNING} --task=table --train_file={{tags}}/table.csv "
     "--dev_file={tags}/table.csv "
     '--table={{"text_column":"text","multi_label":true,"label_separator":"|"}} '
     "--subjects=ours,transformers,transformers-bf16-malloc",
     "seed 1:", SCORES),
    ("domain_words", "--general_text={general} --domain_text={domain} --seeds=1 --vocab_size=400 "
     "--initial_updates=2 --updates=2 --add=5 --sample=0.2 --heldout_fraction=0.1 "
     "--max_seq_length=32 --batch_size=4 --precision=fp32", "$ python",
     [f"{variant}, {text}" for variant in VARIANTS for text in ("domain", "general")]),
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
    documents = stdlib_documentation(100_000).split("\n\n")
    contents = {
        "general": "\n\n".join(documents[::2]),
        "domain": "\n\n".join(documents[1::2]),
        "network": json.dumps(network),
        "squad": json.dumps(squad),
        "vocab": "".join(f"{entry}\n" for entry in VOCABULARY),
        "text": f"{TEXT}\n{TEXT}\n\n" * 20,
    }
    for name, content in contents.items():
        (directory / name).write_text(content)
    tagging_files.write_data(directory / "tags")
    table = "text,label\n" + "one,good\nboth,good|bad\nnone,\n" * 6
    (directory / "tags" / "table.csv").write_text(table)
    record_maker.write(directory / "records" / "a.tfrecord", 30, masked=True)
    record_maker.write_manifest(directory / "records")
    return {name: directory / name for name in (*contents, "tags", "records", "work")}


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """Directories as transformers writes them, by the names that flags have in braces."""
    transformers = pytest.importorskip("transformers")
    transformers.set_seed(1)
    config = transformers.BertConfig(
        **CONFIG.to_dict(), id2label={0: "good", 1: "bad", 2: "neither"}
    )
    found, head = {}, transformers.BertForSequenceClassification
    for name, network in (("encoder", transformers.BertModel), ("classifier", head)):
        directory = found[name] = tmp_path_factory.mktemp(name)
        network(config).save_pretrained(directory)
        (directory / "vocab.txt").write_text("".join(f"{entry}\n" for entry in VOCABULARY))
        (directory / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("program", "flags", "names"),
    [
        *((program, f"{flags} {NETWORK}", names) for program, flags, names in RUNS),
        *WITHOUT_NETWORK,
    ],
)
def test_a_whole_run(program, flags, names, files, networks, tmp_path):
    given = flags.format(**files, **networks).split()
    run("-m", f"benchmarks.{program}", *given, f"--json={tmp_path}/results.json")
    results = json.loads((tmp_path / "results.json").read_text())
    assert all(set(r) == {"name", "subject", "value", "unit", "config"} for r in results)
    assert all(r["value"] > 0 for r in results if r["unit"] in ("sequences/s", "MB/s", "ms"))
    assert all({"cpu", "cpu_features", "cores"} <= set(r["config"]) for r in results)
    assert set(names) <= {r["name"] for r in results}
    # Ours and peers start from weights near zero: the loss is that of guessing.
    steps = [r["config"] for r in results if r["name"].endswith(" step")]
    losses = [config["loss"] for config in steps if config.get("loss")]
    assert not losses or max(losses) == pytest.approx(min(losses), rel=0.1)


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("study", "flags", "printed", "names"), RESUMED)
def test_a_study_keeps_finished_trainings(study, flags, printed, names, files, networks, tmp_path):
    given = [*flags.format(**files, **networks).split(), f"--output_dir={tmp_path / 'study'}"]
    command = ["-m", f"benchmarks.studies.{study}", *given, f"--json={tmp_path / 'results.json'}"]
    first = run(*command, timeout=900)
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(names) <= {r["name"] for r in results}
    assert all(r["value"] > 0 for r in results if r["unit"] == "ratio")
    again = run(*command, timeout=900)
    assert (printed in first.stdout, printed in again.stdout) == (True, False)


@pytest.mark.exhaustive
def test_both_classifiers_give_the_same_labels_and_probabilities(networks):
    texts = ("who wrote the book ?", "anna", TEXT)
    job = ClassifierJob(str(networks["classifier"]), texts, 16, batch_sizes=(2,), threads=1)
    ours = PROGRAMS["ours"](job, {"precision": "fp32"})(texts)
    theirs = PROGRAMS["transformers"](job, {})(texts)
    assert [label for label, _ in ours] == [label for label, _ in theirs]
    assert [p for _, p in ours] == pytest.approx([p for _, p in theirs], abs=1e-5)


@pytest.mark.parametrize(
    ("program", "flags", "sentence"),
    [
        ("step", "--turns=0", "--turns=0: 0 is not a positive integer"),
        ("step", "--subjects=ours,nobody", "--subjects: 'nobody' is not one of ours, "),
        ("step", "--subjects=ours,google-bert-amp", "--subjects: google-bert-amp needs --google_"),
        ("step", "--google_bert_dir=/none", "--google_bert_dir: /none/tokenization.py does not"),
        ("step", "--seq_length=999", "--seq_length=999 is more than the network's 512"),
        ("step", "--predictions=200", "--predictions=200 is more than --seq_length"),
        ("step", "--task=fine-tuning --predictions=2", "--predictions is for --task=pretraining"),
        ("step", "--restrict_ce_to_mask", "--restrict_ce_to_mask is for --task=distillation"),
        ("inference", "--squad_file=none.json", "--squad_file needs --vocab_file"),
        ("inference", "--batch_sizes=2,x", "--batch_sizes=2,x: give whole numbers of at least 1"),
        ("time_to_loss", f"{TEXTS} --subjects=nobody", "--subjects: 'nobody' is not one of goog"),
        (
            "time_to_loss",
            f"{TEXTS} --subjects=ours:fast",
            "--subjects: 'fast' of 'ours:fast' is not",
        ),
        ("loss_curves", f"{CURVES} --seeds=1", "--seeds: give at least two"),
        ("loss_curves", f"{CURVES} --num_train_steps=195", "--num_train_steps=195 is not a mul"),
        ("loss_curves", f"{CURVES} --smoothing_steps=55", "--smoothing_steps=55: give a multiple"),
        ("gpu.__main__", "--parts=types,nothing", "--parts: 'nothing' is not one of device, types"),
        ("gpu.__main__", "--peer_python=/no/python", "--peer_python=/no/python is not a program"),
        ("studies.delayed_allreduce", "--links=fast", "--links: 'fast' is neither a rate"),
        ("studies.scaling_model", "--hosts=1,2", "--hosts=1,2: one host sends nothing"),
        (
            "studies.fine_tuning",
            "--task=table --table=text --train_file={text} "
            "--dev_file={text} --model_dir=none --output_dir={work}",
            "--table=text is not a JSON object",
        ),
    ],
)
def test_bad_input_is_one_sentence(program, flags, sentence, files):
    done = run("-m", f"benchmarks.{program}", *flags.format(**files).split(), check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {sentence}")
    assert done.stderr.count("\n") == 1
