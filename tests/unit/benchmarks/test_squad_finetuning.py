"""The comparison with transformers: the peer does the job right, figures are put together right."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from benchmarks import squad_finetuning, squad_subjects, transformers_squad
from benchmarks.machine import describe_machine
from benchmarks.squad_finetuning import cut_squad, rate, score_results, speed_results
from benchmarks.squad_subjects import SUBJECTS, Job, Run, command, run_subject
from benchmarks.transformers_squad import Settings, Windows, best_answers, make_windows
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


@pytest.fixture(scope="module")
def tokenizer(checkpoint):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(checkpoint)


SHORT = Settings(max_seq_length=16, doc_stride=4)
LONG = Settings(max_seq_length=32, doc_stride=4)


def test_windows_cover_the_context_and_labels_are_the_answer(tokenizer, squad_file):
    squad = read(squad_file(["mat", "dog lay", "a dog sat on the dog", ""]), version_2=True)
    windows = make_windows(squad.examples, tokenizer, SHORT, labelled=True)
    assert {name: tuple(v.shape) for name, v in windows.inputs.items() if v.ndim == 2} == {
        name: (len(windows), 16) for name in ("input_ids", "attention_mask", "token_type_ids")
    }
    found = {number: set() for number in range(4)}
    for row in range(len(windows)):
        in_context = windows.offsets[row, :, 0] >= 0
        assert np.array_equal(in_context, windows.offsets[row, :, 1] >= 0)
        assert not in_context[:4].any(), "[CLS] who sat ? come first, then [SEP]"
        example = squad.examples[windows.examples[row]]
        first = int(windows.inputs["start_positions"][row])
        last = int(windows.inputs["end_positions"][row])
        visible = example.context[slice(*windows.offsets[row][in_context][[0, -1], [0, 1]])]
        if first:
            text = example.context[windows.offsets[row, first, 0] : windows.offsets[row, last, 1]]
            assert text == example.answers[0].text
        else:
            assert last == 0
            text = ""
            if example.answers:
                start = example.answers[0].start
                window_start = windows.offsets[row][in_context][0, 0]
                is_whole = window_start <= start and start + len(
                    example.answers[0].text
                ) <= window_start + len(visible)
                assert not is_whole
        found[int(windows.examples[row])].add(text)
    assert [found[n] - {""} for n in range(4)] == [
        {"mat"},
        {"dog lay"},
        {"a dog sat on the dog"},
        set(),
    ]


def test_padding_can_be_cut_from_a_batch(tokenizer, squad_file):
    squad = read(squad_file(["mat"]))
    windows = make_windows(squad.examples, tokenizer, LONG, labelled=True)
    whole, cut = (windows.batch([0], cut=cut) for cut in (False, True))
    length = int(whole["attention_mask"].sum())
    assert length < 32
    assert cut["input_ids"].shape == (1, length)
    assert (cut["input_ids"] == whole["input_ids"][:, :length]).all()
    assert cut["start_positions"] == whole["start_positions"]


@pytest.mark.parametrize("version_2", [False, True])
def test_best_answer_against_trying_all_spans(squad_file, version_2):
    squad = read(squad_file(["mat"] * 40), version_2=version_2)
    settings = Settings(max_answer_length=3, n_best_size=24, version_2_with_negative=version_2)
    draw = np.random.default_rng(1)
    num_windows, length = 100, 24
    offsets = np.full((num_windows, length, 2), -1)
    for token in range(5, 20):
        offsets[:, token] = 3 * token, 3 * token + 2
    of_window = np.sort(np.append(np.arange(40), draw.integers(0, 40, 60)))
    start, end = (draw.normal(size=(num_windows, length)) for _ in range(2))
    start[:, 0] += 2.5
    expected = {}
    for number, example in enumerate(squad.examples):
        rows = np.flatnonzero(of_window == number)
        score, _, i, j = max(
            (start[row, i] + end[row, j], row, i, j)
            for row in rows
            for i in range(5, 20)
            for j in range(i, min(i + 3, 20))
        )
        null = min(start[row, 0] + end[row, 0] for row in rows)
        text = CONTEXT[3 * i : 3 * j + 2]
        expected[example.question_id] = "" if version_2 and null > score else text
    windows = Windows({}, of_window, offsets)
    assert best_answers(squad.examples, windows, start, end, settings) == expected
    assert ("" in expected.values()) == version_2


def test_epochs_and_batches():
    settings = Settings(train_batch_size=4, num_train_epochs=1.5)
    batches = list(transformers_squad.training_rows(10, settings))
    assert [len(batch) for batch in batches] == [4, 4, 2, 4], "4.5 steps are 4"
    assert sorted(row for batch in batches[:3] for row in batch) == list(range(10))
    assert batches == list(transformers_squad.training_rows(10, settings))
    assert len(list(transformers_squad.training_rows(10, Settings(num_train_epochs=0.01)))) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{}, {"precision": "bf16", "pad_to_max_length": False, "n_best_size": 9}]
)
def test_the_peer_learns(checkpoint, squad_file, changes):
    """It finds the answer that is always the same, in windows that do not hold all of the text."""
    squad = read(squad_file(["dog lay"] * 33))
    settings = dataclasses.replace(
        LONG,
        max_seq_length=24,
        train_batch_size=8,
        learning_rate=1e-2,
        num_train_epochs=8.0,
        **changes,
    )
    answers, timings = transformers_squad.run(
        settings, init_checkpoint=str(checkpoint), train_file=squad, predict_file=squad
    )
    assert answers == {f"q{number}": "dog lay" for number in range(33)}
    assert [sequences for sequences, _ in timings["train_timings"]] == [*[8] * 8, 2] * 8
    assert [sequences for sequences, _ in timings["predict_timings"]] == [*[8] * 8, 2]
    assert all(seconds > 0 for _, seconds in timings["train_timings"])


def test_the_peer_takes_the_learning_rate(checkpoint, squad_file, tokenizer):
    """The first update of Adam moves weights by as much as the rate, whatever their gradients."""
    transformers = pytest.importorskip("transformers")
    squad = read(squad_file(["dog lay"]))
    settings = dataclasses.replace(
        LONG, learning_rate=3e-4, num_train_epochs=1.0, warmup_proportion=0.0, weight_decay=0.0
    )
    windows = transformers_squad.make_windows(squad.examples, tokenizer, settings, labelled=True)
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(str(checkpoint))
    before = model.qa_outputs.weight.detach().clone()
    assert len(transformers_squad.train(model, windows, settings)) == 1
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


def fake_run(train, predict):
    return Run(None, [(1, 1 / train)], [(1, 1 / predict)], 1.0)


def test_speeds_are_medians_and_ratios():
    runs = {
        "ours-auto": [fake_run(r, 40.0) for r in (4.0, 6.0, 50.0)],
        "transformers-fp32": [fake_run(r, 10.0) for r in (2.0, 3.0, 1.0)],
    }
    results = speed_results(runs, skipped=0, config={"max_seq_length": 384})
    found = {(r["name"], r["subject"]): (r["value"], r["unit"]) for r in results}
    assert found == {
        ("training", "ours-auto"): (pytest.approx(6.0), "sequences/s"),
        ("training", "transformers-fp32"): (pytest.approx(2.0), "sequences/s"),
        ("training, ours-auto to transformers-fp32", "ours-auto"): (pytest.approx(3.0), "ratio"),
        ("prediction", "ours-auto"): (pytest.approx(40.0), "sequences/s"),
        ("prediction", "transformers-fp32"): (pytest.approx(10.0), "sequences/s"),
        ("prediction, ours-auto to transformers-fp32", "ours-auto"): (pytest.approx(4.0), "ratio"),
    }
    assert results[0]["config"]["turns"] == pytest.approx([4.0, 6.0, 50.0])
    assert {"max_seq_length", "cpu", "cpu_features", "cores"} <= set(results[0]["config"])


def test_scores_have_a_mean_and_a_spread(capsys):
    scores = {
        "ours-fp32": [{"exact_match": 60.0, "f1": f1} for f1 in (70.0, 72.0, 74.0)],
        "transformers-bf16": [{"exact_match": 61.0, "f1": 71.0}],
    }
    results = score_results(scores, config={})
    found = {(r["name"], r["subject"]): r for r in results}
    ours = found["f1", "ours-fp32"]
    assert (ours["value"], ours["config"]["standard_deviation"]) == (72.0, 2.0)
    assert found["f1", "transformers-bf16"]["config"]["standard_deviation"] is None
    difference = found["f1, ours-fp32 to transformers-bf16", "ours-fp32"]
    assert (difference["value"], difference["unit"]) == (1.0, "points")
    squad_finetuning.print_table(results)
    printed = capsys.readouterr().out
    assert "f1, ours-fp32" in printed
    assert "72.00 % (standard deviation 2.00)" in printed


@pytest.fixture
def job(checkpoint, squad_file):
    path = squad_file(["mat"])
    return Job(checkpoint, path, path, {"train_batch_size": 4, "seed": 1})


def test_commands_of_both_sides_have_the_same_flags(job, tmp_path):
    ours = command(SUBJECTS["ours-bf16"], job, tmp_path)
    peer = command(SUBJECTS["transformers-bf16-malloc"], job, tmp_path)
    assert ours[0] == "run_squad.py"
    assert peer[:2] == ["-m", "benchmarks.transformers_squad"]
    own = {"--do_train", "--do_predict", "--display_loss_steps=1", "--adam_bias_correction"}
    assert own < set(ours)
    assert set(peer[2:]) == set(ours[1:]) - own
    assert SUBJECTS["transformers-bf16-malloc"].environment["MALLOC_MMAP_MAX_"] == "0"


LEAVES = {
    "ours-auto": """
import json, sys
rows = [{"step": n, "sequences_per_second": 2.0} for n in (1, 2)]
open(sys.argv[1] + "/log.jsonl", "w").write("".join(json.dumps(row) + "\\n" for row in rows))
json.dump({"predict_sequences_per_second": 5.0}, open(sys.argv[1] + "/eval_results.json", "w"))
""",
    "transformers-fp32": """
import json, sys
result = {"train_timings": [[4, 2.0], [4, 2.0]], "predict_timings": [[1, 0.2]]}
json.dump(result, open(sys.argv[1] + "/result.json", "w"))
""",
}


@pytest.mark.parametrize("name", LEAVES)
def test_a_finished_run_is_kept_until_the_job_changes(job, tmp_path, monkeypatch, name):
    subject, calls = SUBJECTS[name], []

    def fake_command(_subject, _job, output_dir):
        calls.append(output_dir)
        return ["-c", LEAVES[name], str(output_dir)]

    monkeypatch.setattr(squad_subjects, "command", fake_command)
    for _ in range(2):
        found = run_subject(subject, job, tmp_path / "work")
        assert [tuple(t) for t in found.train_timings] == [(4, 2.0), (4, 2.0)]
        assert [tuple(t) for t in found.predict_timings] == [(1, 0.2)]
    assert len(calls) == 1
    changed = Job(job.init_checkpoint, job.train_file, job.predict_file, {**job.flags, "seed": 2})
    run_subject(subject, changed, tmp_path / "work")
    assert len(calls) == 2


def test_a_run_that_fails(job, tmp_path, monkeypatch):
    monkeypatch.setattr(squad_subjects, "command", lambda *_: ["-c", "print('why'); exit(3)"])
    with pytest.raises(UserError, match=r"ours-auto ended with status 3; .*output.txt says why"):
        run_subject(SUBJECTS["ours-auto"], job, tmp_path / "work")
    assert (tmp_path / "work" / "output.txt").read_text() == "why\n"
    assert not (tmp_path / "work" / "run.json").exists()


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
        "--train_batch_size=2",
    ]
    run(*common, "--mode=throughput", "--turns=1", "--untimed_steps=1", "--timed_steps=1")
    names = [r["name"] for r in json.loads((tmp_path / "results.json").read_text())]
    assert names == ["training", "prediction"]
    done = run(*common, "--mode=quality", "--seeds=3", "--max_train_questions=2")
    results = json.loads((tmp_path / "results.json").read_text())
    assert [r["name"] for r in results] == ["training", "prediction", "exact_match", "f1"]
    assert results[3]["config"]["seeds"] == [3]
    assert results[3]["config"]["of_seeds"] == [results[3]["value"]]
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
