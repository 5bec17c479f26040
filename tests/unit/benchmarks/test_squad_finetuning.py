"""The comparison with transformers: the peer does the job right, figures are put together right."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import squad_finetuning
from benchmarks.machine import describe_machine
from benchmarks.speed.process import as_flag
from benchmarks.squad_finetuning import (
    SUBJECTS,
    command,
    cut_squad,
    rate,
    run_subject,
    score_results,
)
from bert_tf.errors import UserError
from bert_tf.squad.examples import read_squad
from tests.support import run

WORDS = ["the", "cat", "sat", "on", "a", "mat", "who", "where", "dog", "lay", "?", "."]
ENTRIES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
CONTEXT = "the cat sat on a mat . the dog lay where the cat sat . a dog sat on the dog ."


def question(number, text, answer):
    start = CONTEXT.find(answer) if answer else 0
    answers = [{"text": answer, "answer_start": start}] if answer else []
    return {"id": f"q{number}", "question": text, "answers": answers, "is_impossible": not answer}


def squad_content(answers):
    qas = [question(n, "who sat ?", answer) for n, answer in enumerate(answers)]
    return {
        "version": "x",
        "data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": qas}]}],
    }


@pytest.fixture
def squad_file(tmp_path):
    def write(answers):
        path = tmp_path / "squad.json"
        path.write_text(json.dumps(squad_content(answers)))
        return path

    return write


def read(path, version_2=False):
    return read_squad(
        path, flag="train_file", version_2_with_negative=version_2, needs_answers=True
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A tiny BERT as transformers saves it."""
    transformers = pytest.importorskip("transformers")
    directory = tmp_path_factory.mktemp("checkpoint")
    vocab = directory / "vocab.txt"
    vocab.write_text("".join(f"{entry}\n" for entry in ENTRIES))
    transformers.BertTokenizerFast(str(vocab)).save_pretrained(directory)
    config = transformers.BertConfig(
        vocab_size=len(ENTRIES),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
    )
    transformers.BertModel(config).save_pretrained(directory)
    return directory


@pytest.fixture
def peer(checkpoint, squad_file):
    """The peer's module, and a job for it with changes."""
    pytest.importorskip("torch")
    from benchmarks import transformers_squad

    def job(answers, **changes):
        path = str(squad_file(answers))
        return {
            "init_checkpoint": str(checkpoint),
            "train_file": path,
            "predict_file": path,
            "max_seq_length": 24,
            "doc_stride": 4,
            "max_query_length": 8,
            "train_batch_size": 8,
            "predict_batch_size": 8,
            "learning_rate": 1e-2,
            "num_train_epochs": 8.0,
            "warmup_proportion": 0.1,
            "weight_decay": 0.01,
            "version_2_with_negative": False,
            "seed": 1,
            "settings": {"precision": "fp32", "pad_to_max_length": True},
            **changes,
        }

    return transformers_squad, job


def windows_of(module, job, *, training=True):
    files = module.model_files(job["init_checkpoint"]).tokenizer_files
    lengths = (job[name] for name in ("max_seq_length", "doc_stride", "max_query_length"))
    squad = read(job["train_file"])
    return module.read_windows(squad, files, module.WindowSettings(*lengths), training=training)


def test_padding_can_be_cut_from_a_batch(peer):
    module, job = peer
    windows = windows_of(module, job(["mat"], max_seq_length=32))
    whole, cut = (windows.batch(np.array([0]), pad=pad) for pad in (True, False))
    length = int(whole["attention_mask"].sum())
    assert length < 32
    assert cut["input_ids"].shape == (1, length)
    assert (cut["input_ids"] == whole["input_ids"][:, :length]).all()
    assert cut["start_positions"] == whole["start_positions"]


def test_epochs_and_batches(peer):
    module, _ = peer
    batches = list(module.training_rows(10, batch_size=4, steps=4, seed=1))
    assert [len(batch) for batch in batches] == [4, 4, 2, 4]
    assert sorted(row for batch in batches[:3] for row in batch) == list(range(10))
    again = module.training_rows(10, batch_size=4, steps=4, seed=1)
    assert all(map(np.array_equal, batches, again))
    assert len(list(module.training_rows(10, batch_size=4, steps=1, seed=1))) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "fp32", "pad_to_max_length": True},
        {"precision": "bf16", "pad_to_max_length": False},
    ],
)
def test_the_peer_learns(peer, settings):
    """It finds the answer that is always the same, in windows that do not hold all of the text."""
    module, job = peer
    found = module.fine_tune(job(["dog lay"] * 33, settings=settings))
    assert found["answers"] == {f"q{number}": "dog lay" for number in range(33)}
    sizes = [sequences for sequences, _ in found["predict_timings"]]
    assert sizes[:-1] == [8] * (len(sizes) - 1)
    assert [sequences for sequences, _ in found["train_timings"]] == sizes * 8
    assert all(seconds > 0 for _, seconds in found["train_timings"])


def test_the_peer_takes_the_learning_rate(peer):
    """The first update of Adam moves weights by as much as the rate, whatever their gradients."""
    transformers = pytest.importorskip("transformers")
    module, job = peer
    job = job(["dog lay"], learning_rate=3e-4, num_train_epochs=1.0, warmup_proportion=0.0,
              weight_decay=0.0, max_seq_length=32)  # fmt: skip
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(job["init_checkpoint"])
    before = model.qa_outputs.weight.detach().clone()
    assert len(module.train(model, windows_of(module, job), job)) == 1
    moved = (model.qa_outputs.weight.detach() - before).abs().max().item()
    assert moved == pytest.approx(3e-4, rel=0.01)


@pytest.mark.parametrize("kept", [1, 7, 10, 99])
def test_cut_files_are_spread_over_the_whole(tmp_path, kept):
    content = squad_content(["mat"] * 4)
    content["data"] = [
        {**content["data"][0], "title": str(n), "paragraphs": [
            {"context": CONTEXT, "qas": [question(10 * n + q, "who ?", "mat") for q in range(5)]}
        ]} for n in range(4)
    ]  # fmt: skip
    source = tmp_path / "whole.json"
    source.write_text(json.dumps(content))
    cut = read(cut_squad(source, kept, tmp_path / "cut.json"))
    whole = [example.question_id for example in read(source).examples]
    ids = [example.question_id for example in cut.examples]
    assert len(ids) == min(kept, 20)
    assert ids == sorted(ids, key=whole.index)
    gaps = np.diff([whole.index(i) for i in ids])
    assert not len(gaps) or gaps.max() - gaps.min() <= 1


def test_rate_leaves_the_first_steps_out():
    timings = [(12, 60.0), (12, 2.0), (12, 4.0), (6, 2.0)]
    assert rate(timings, skipped=1) == 30 / 8
    assert rate(timings[:1], skipped=1) == 12 / 60, "nothing else was measured"


def test_scores_have_a_mean_and_a_spread():
    scores = {
        "ours-fp32": [{"exact_match": 60.0, "f1": f1} for f1 in (70.0, 72.0, 74.0)],
        "transformers-bf16": [{"exact_match": 61.0, "f1": 71.0}],
    }
    found = {(r["name"], r["subject"]): r for r in score_results(scores, {"seeds": [1]})}
    ours = found["f1", "ours-fp32"]
    assert (ours["value"], ours["unit"]) == (72.0, "%")
    assert ours["config"] == {"seeds": [1], "turns": [70.0, 72.0, 74.0], "standard_deviation": 2.0}
    assert found["f1", "transformers-bf16"]["config"]["standard_deviation"] is None


@pytest.fixture
def job(checkpoint, squad_file):
    path = str(squad_file(["mat"]))
    files = {"init_checkpoint": str(checkpoint), "train_file": path, "predict_file": path}
    return {**files, "train_batch_size": 4, "version_2_with_negative": False, "seed": 1}


def test_both_sides_get_the_same_job(job, tmp_path):
    ours = command(SUBJECTS["ours-bf16"], job, tmp_path)
    peer = command(SUBJECTS["transformers-bf16-malloc"], job, tmp_path)
    assert ours[0] == "run_squad.py"
    assert peer[-3:] == ["benchmarks.transformers_squad", "fine_tune", str(tmp_path)]
    given = {as_flag(name, value) for name, value in job.items()}
    assert given | {"--precision=bf16", "--do_train", "--do_predict"} < set(ours)
    written = json.loads((tmp_path / "job.json").read_text())
    assert {name: written[name] for name in job} == job
    assert written["settings"] == {"precision": "bf16", "pad_to_max_length": True}
    assert SUBJECTS["transformers-bf16-malloc"].environment["MALLOC_MMAP_MAX_"] == "0"


LEAVES = {
    "ours-auto": """
import json, sys
rows = [{"step": n, "sequences_per_second": 2.0} for n in (1, 2)]
open(sys.argv[1] + "/log.jsonl", "w").write("".join(json.dumps(row) + "\\n" for row in rows))
json.dump({"predict_sequences_per_second": 5.0}, open(sys.argv[1] + "/eval_results.json", "w"))
json.dump({"q0": "mat"}, open(sys.argv[1] + "/predictions.json", "w"))
""",
    "transformers-fp32": """
import json, sys
result = {"train_timings": [[4, 2.0], [4, 2.0]], "predict_timings": [[1, 0.2]]}
json.dump({"answers": {"q0": "mat"}, **result}, open(sys.argv[1] + "/found.json", "w"))
""",
}


@pytest.mark.parametrize("name", LEAVES)
def test_a_finished_run_is_kept_until_the_job_changes(job, tmp_path, monkeypatch, name):
    subject, calls = SUBJECTS[name], []

    def fake_command(_subject, _job, directory):
        calls.append(directory)
        return ["-c", LEAVES[name], str(directory)]

    monkeypatch.setattr(squad_finetuning, "command", fake_command)
    for _ in range(2):
        found = run_subject(subject, job, tmp_path / "work")
        assert [tuple(t) for t in found["train_timings"]] == [(4, 2.0), (4, 2.0)]
        assert [tuple(t) for t in found["predict_timings"]] == [(1, 0.2)]
        assert found["answers"] == {"q0": "mat"}
    assert len(calls) == 1
    run_subject(subject, {**job, "seed": 2}, tmp_path / "work")
    assert len(calls) == 2


def test_a_run_that_fails(job, tmp_path, monkeypatch):
    monkeypatch.setattr(squad_finetuning, "command", lambda *_: ["-c", "print('why'); exit(3)"])
    with pytest.raises(UserError, match=r"ours-auto ended with status 3; .*output.txt says why"):
        run_subject(SUBJECTS["ours-auto"], job, tmp_path / "work")
    assert (tmp_path / "work" / "output.txt").read_text() == "why\n"
    assert not (tmp_path / "work" / "finished.json").exists()


@pytest.mark.slow
def test_whole_benchmark_of_the_peer(checkpoint, squad_file, tmp_path):
    path = squad_file(["mat", "dog lay", "a mat", "cat"])
    common = [
        "-m",
        "benchmarks.squad_finetuning",
        f"--init_checkpoint={checkpoint}",
        f"--train_file={path}",
        f"--predict_file={path}",
        f"--work_dir={tmp_path / 'work'}",
        f"--json={tmp_path / 'results.json'}",
        "--subjects=transformers-fp32",
        "--max_seq_length=32",
        "--doc_stride=4",
        "--max_query_length=8",
        "--train_batch_size=2",
    ]
    run(*common, "--mode=throughput", "--turns=1", "--untimed_steps=1", "--timed_steps=1")
    names = [r["name"] for r in json.loads((tmp_path / "results.json").read_text())]
    assert names == ["training", "prediction"]
    done = run(*common, "--mode=quality", "--seeds=3", "--max_train_questions=2")
    results = json.loads((tmp_path / "results.json").read_text())
    assert [r["name"] for r in results] == ["training", "prediction", "exact_match", "f1"]
    assert results[3]["config"]["seeds"] == [3]
    assert results[3]["config"]["turns"] == [results[3]["value"]]
    assert results[3]["config"]["train_file"] == "squad-2.json"
    assert "exact_match, transformers-fp32" in done.stdout


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--subjects=transformers-fp32,other", "error: --subjects: 'other' is none of ours-auto,"),
        ("--seeds=1,x", "error: --seeds=1,x: give whole numbers"),
        ("--train_file=none.json", "error: --train_file: none.json does not exist"),
        ("--init_checkpoint=/", "error: --init_checkpoint: /config.json does not exist"),
    ],
)
def test_bad_flags_end_in_one_sentence(checkpoint, squad_file, tmp_path, flag, message):
    path = squad_file(["mat"])
    done = run(
        "-m",
        "benchmarks.squad_finetuning",
        "--mode=quality",
        f"--init_checkpoint={checkpoint}",
        f"--train_file={path}",
        f"--predict_file={path}",
        f"--work_dir={tmp_path / 'work'}",
        flag,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


def test_machine(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name\t: A CPU 9\nflags\t\t: fpu avx2 avx512_bf16 sse\n" * 2)
    described = describe_machine(cpuinfo)
    assert (described["cpu"], described["cpu_features"]) == ("A CPU 9", ["avx2", "avx512_bf16"])
    assert described["cores"] >= 1
    assert describe_machine(tmp_path / "none")["cpu_features"] == []


def test_the_benchmark_needs_neither_torch_nor_tensorflow_at_import():
    code = (
        "import benchmarks.squad_finetuning, sys; "
        "assert not {'torch', 'transformers', 'tensorflow'} & set(sys.modules)"
    )
    run("-c", code)
