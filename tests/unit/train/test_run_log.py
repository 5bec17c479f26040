"""One dict, three sinks that say the same."""

import json
import math

import pytest
import tensorflow.compat.v1 as tf

from bert_tf.train import run_log
from bert_tf.train.run_log import RunLog
from bert_tf.util.errors import UserError
from bert_tf.util.files import write_json
from tests.helpers.files import no_room

FIGURES = {"loss": 2.5, "learning_rate": 1e-4, "sequences_per_second": 12_345.0}


def read_lines(directory, name):
    return [json.loads(line) for line in (directory / name).read_text().splitlines()]


def read_events(directory):
    """step -> {tag: value}, over all event files of the directory."""
    found = {}
    for path in sorted(directory.glob("events.out.tfevents.*")):
        for event in tf.train.summary_iterator(str(path)):
            for value in event.summary.value:
                found.setdefault(event.step, {})[value.tag] = value.simple_value
    return found


def test_three_sinks_agree(tmp_path, capsys):
    RunLog(tmp_path).step(7, FIGURES, total_steps=100, seconds_left=95)
    assert capsys.readouterr().out == (
        "step 7/100  loss 2.5  learning_rate 0.0001  sequences_per_second 12345  ETA 1m35s\n"
    )
    [line] = read_lines(tmp_path, "log.jsonl")
    assert line.pop("time") > 1.6e9
    assert list(line) == ["step", *FIGURES]
    assert line == {"step": 7, **FIGURES}
    assert read_events(tmp_path) == {7: pytest.approx(FIGURES, rel=1e-7)}


def test_details_are_recorded_and_not_printed(tmp_path, capsys):
    log = RunLog(tmp_path)
    log.step(1, {"loss": 3.0}, details={"part": 2.0}, total_steps=9, seconds_left=0)
    assert "part" not in capsys.readouterr().out
    assert read_lines(tmp_path, "log.jsonl")[0]["part"] == 2.0
    assert read_events(tmp_path)[1]["part"] == 2.0


def test_losses_can_be_left_out_of_the_terminal(tmp_path, capsys):
    figures = {"loss": 3.0, "masked_lm_accuracy": 0.5}
    RunLog(tmp_path, report_loss=False).step(1, figures, total_steps=9, seconds_left=0)
    assert capsys.readouterr().out == "step 1/9  masked_lm_accuracy 0.5  ETA 0s\n"
    assert read_lines(tmp_path, "log.jsonl")[0]["loss"] == 3.0


def read_dllog(path):
    lines = path.read_text().splitlines()
    assert all(line.startswith("DLLL {") for line in lines)
    return [json.loads(line[len("DLLL ") :]) for line in lines]


def test_lines_of_dllogger(tmp_path):
    path = tmp_path / "logs" / "dllog.json"
    log = RunLog(tmp_path, dllog_path=str(path))
    log.step(1, FIGURES, details={"masked_lm_loss": math.inf}, total_steps=9, seconds_left=0)
    log.evaluation(1, {"exact_match": 81.0, "f1": 88.0})
    step, evaluation = read_dllog(path)
    assert (step["type"], step["step"]) == ("LOG", 1)
    assert {"timestamp", "datetime", "elapsedtime"} <= set(step)
    assert step["data"] == {
        "total_loss": 2.5,
        "learning_rate": 1e-4,
        "throughput_train": 12_345.0,
        "mlm_loss": None,
    }
    assert evaluation["data"] == {"exact_match": 81.0, "f1": 88.0}

    resumed = RunLog(tmp_path, dllog_path=str(path))
    resumed.resume(1)
    resumed.step(2, FIGURES, total_steps=9, seconds_left=0)
    assert [line["step"] for line in read_dllog(path)] == [1, 1, 2]
    another = RunLog(tmp_path, dllog_path=str(path))
    another.resume(0)
    another.step(1, FIGURES, total_steps=9, seconds_left=0)
    assert [line["step"] for line in read_dllog(path)] == [1]


def test_evaluations_have_a_file_and_tags_of_their_own(tmp_path, capsys):
    log = RunLog(tmp_path)
    log.evaluation(3, {"loss": 1.25, "masked_lm_accuracy": 0.5}, note="  (best so far)")
    assert capsys.readouterr().out == (
        "evaluation at step 3: loss 1.2500  masked_lm_accuracy 0.5000  (best so far)\n"
    )
    [line] = read_lines(tmp_path, "eval_log.jsonl")
    assert (line["step"], line["loss"], line["masked_lm_accuracy"]) == (3, 1.25, 0.5)
    assert not (tmp_path / "log.jsonl").exists()
    assert read_events(tmp_path) == {3: {"eval/loss": 1.25, "eval/masked_lm_accuracy": 0.5}}


def test_an_evaluation_of_given_weights_names_them(tmp_path, capsys):
    RunLog(tmp_path).evaluation(0, {"loss": 1.25}, of="models/rated")
    assert capsys.readouterr().out == "evaluation of models/rated: loss 1.2500\n"


def test_figures_of_layers_are_drawn_and_those_of_variables_written(tmp_path, capsys):
    layers = {"layer_0": {"weight_norm": 1.2345678, "update_ratio": math.nan}}
    RunLog(tmp_path).layers(3, layers, {"a/layer_0/w": {"weight_norm": 1e-12 / 3}})
    assert capsys.readouterr().out == ""
    [line] = read_lines(tmp_path, "layer_log.jsonl")
    assert line.pop("time") > 1.6e9
    assert line == {
        "step": 3,
        "layers": {"layer_0": {"weight_norm": 1.23457, "update_ratio": None}},
        "variables": {"a/layer_0/w": {"weight_norm": 3.33333e-13}},
    }
    assert read_events(tmp_path)[3]["weight_norm/layer_0"] == pytest.approx(1.2345678)


def test_figures_that_are_not_finite_are_null_in_json(tmp_path, capsys):
    RunLog(tmp_path).evaluation(3, {"loss": math.nan, "perplexity": math.inf})
    assert capsys.readouterr().out == "evaluation at step 3: loss nan  perplexity inf\n"
    [line] = read_lines(tmp_path, "eval_log.jsonl")
    assert (line["loss"], line["perplexity"]) == (None, None)
    assert "NaN" not in (tmp_path / "eval_log.jsonl").read_text()


def test_a_resumed_run_keeps_its_history(tmp_path):
    for start in (1, 3):
        log = RunLog(tmp_path)
        for step in (start, start + 1):
            log.step(step, {"loss": float(step)}, total_steps=4, seconds_left=0)
        log.evaluation(start + 1, {"loss": 0.5})
        # Event files are named after the second in which they are made. No program starts again
        # within one, but these two runs may.
        for path in tmp_path.glob("events.*"):
            path.rename(f"{path}.{start}")
    assert [line["step"] for line in read_lines(tmp_path, "log.jsonl")] == [1, 2, 3, 4]
    assert [line["step"] for line in read_lines(tmp_path, "eval_log.jsonl")] == [2, 4]
    assert {step: v["loss"] for step, v in read_events(tmp_path).items()} == {
        1: 1,
        2: 2,
        3: 3,
        4: 4,
    }


def test_what_came_after_the_resumed_step_is_forgotten(tmp_path):
    log = RunLog(tmp_path)
    for step in (1, 2, 3):
        log.step(step, {"loss": float(step)}, total_steps=4, seconds_left=0)
    log.evaluation(2, {"loss": 0.5})
    log.evaluation(4, {"loss": 0.25})
    for step in (2, 3):
        log.layers(step, {"layer_0": {"weight_norm": 1.0}}, {"w": {"weight_norm": 1.0}})
    for path in tmp_path.glob("events.*"):
        path.rename(f"{path}.1")
    halves = {"log.jsonl": '{"step": 4, "lo', "eval_log.jsonl": '{"step', "layer_log.jsonl": "{"}
    for name, half in halves.items():
        with open(tmp_path / name, "a") as file:
            file.write(half)
    before = (tmp_path / "log.jsonl").read_text().splitlines()[:2]
    log = RunLog(tmp_path)
    log.resume(2)
    assert (tmp_path / "log.jsonl").read_text().splitlines() == before
    log.step(3, {"loss": 30.0}, total_steps=4, seconds_left=0)
    assert [line["step"] for line in read_lines(tmp_path, "log.jsonl")] == [1, 2, 3]
    for name in ("eval_log.jsonl", "layer_log.jsonl"):
        assert [line["step"] for line in read_lines(tmp_path, name)] == [2]
    [path] = set(tmp_path.glob("events.*")) - set(tmp_path.glob("events.*.1"))
    starts = [e.step for e in tf.train.summary_iterator(str(path)) if e.HasField("session_log")]
    assert starts == [3], "TensorBoard leaves out what it had from there on"


def test_resuming_rewrites_nothing_without_need(tmp_path):
    log = RunLog(tmp_path)
    log.resume(0)
    assert list(tmp_path.iterdir()) == []
    log.step(1, {"loss": 1.0}, total_steps=4, seconds_left=0)
    before = (tmp_path / "log.jsonl").stat().st_ino
    RunLog(tmp_path).resume(1)
    assert (tmp_path / "log.jsonl").stat().st_ino == before


def test_a_repeated_evaluation_replaces_the_first(tmp_path):
    log = RunLog(tmp_path)
    for step, loss in [(1, 4.0), (2, 3.0), (1, 2.0)]:
        log.evaluation(step, {"loss": loss})
    lines = read_lines(tmp_path, "eval_log.jsonl")
    assert sorted((line["step"], line["loss"]) for line in lines) == [(1, 2.0), (2, 3.0)]


def test_lines_are_there_before_the_run_ends(tmp_path):
    log = RunLog(tmp_path)
    log.step(1, {"loss": 1.0}, total_steps=2, seconds_left=0)
    assert len(read_lines(tmp_path, "log.jsonl")) == 1
    assert read_events(tmp_path) == {1: {"loss": 1.0}}
    log.message("the end")


def test_messages_go_to_the_terminal_alone(tmp_path, capsys):
    RunLog(tmp_path).message("resuming from model.ckpt-3")
    assert capsys.readouterr().out == "resuming from model.ckpt-3\n"
    assert not list(tmp_path.glob("*.jsonl"))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (999.0, "999"),
        (65_536.0, "65536"),
        (2.0**32, "4294967296"),
        (12_345.6, "12346"),
        (0.123456, "0.1235"),
        (-1000.0, "-1000"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
    ],
)
def test_numbers_on_the_terminal(tmp_path, capsys, value, shown):
    RunLog(tmp_path).step(1, {"x": value}, total_steps=1, seconds_left=0)
    assert capsys.readouterr().out == f"step 1/1  x {shown}  ETA 0s\n"


def test_history_has_each_step_once_in_order_and_no_half_line(tmp_path):
    assert run_log.read_history(tmp_path, run_log.STEPS) == []
    lines = ['{"step": 1, "loss": 3}', '{"step": 2, "loss": 2}', '{"step": 2, "loss": 2.5}']
    lines += ["[]", "{}", '{"step": "3"}', "\xff"]
    (tmp_path / "log.jsonl").write_text("\n".join([*lines, '{"step": 3, "lo']))
    assert run_log.read_history(tmp_path, run_log.STEPS) == [
        {"step": 1, "loss": 3},
        {"step": 2, "loss": 2.5},
    ]


@pytest.mark.parametrize(("most_bytes", "name"), [(20, "log.jsonl"), (100, "events.out.tfevents")])
def test_a_full_disk_is_one_sentence_that_names_the_file(tmp_path, most_bytes, name):
    log = RunLog(tmp_path)
    figures = {"loss": 1.0, "a": 2.0, "b": 3.0} if name != "log.jsonl" else FIGURES
    with pytest.raises(UserError) as error, no_room(most_bytes):
        log.step(1, figures, total_steps=1, seconds_left=0)
    assert str(error.value).startswith(f"cannot write {tmp_path / name}")
    assert "(File too large)" in str(error.value)


def test_a_flipped_bit_of_an_evaluation_changes_nothing_unnoticed(tmp_path):
    log = RunLog(tmp_path)
    for step in (3, 6):
        log.evaluation(step, {"loss": 1.25})
    path = tmp_path / "eval_log.jsonl"
    intact = path.read_bytes()
    expected = run_log.read_history(tmp_path, run_log.EVALUATIONS)
    assert [record["step"] for record in expected] == [3, 6]
    sentences = set()
    for bit in range(8 * len(intact)):
        flipped = bytearray(intact)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            assert run_log.read_history(tmp_path, run_log.EVALUATIONS) == expected
        except UserError as error:
            sentences.add(str(error))
    ends = "; restore the file, or delete it to forget the evaluations so far."
    assert sentences == {
        f"evaluation log: {path} has a damaged line{ends}",
        f"evaluation log: {path} does not match its content_sha256, so it was damaged or edited"
        f"{ends}",
    }


def test_few_lines_of_a_run_are_printed_and_all_recorded(tmp_path, capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(run_log.time, "monotonic", lambda: now[0])

    def printed(few_lines, seconds_a_step):
        log = RunLog(tmp_path / f"{few_lines} {seconds_a_step}", few_lines=few_lines)
        log._output_dir.mkdir()
        for step in range(10, 1001, 10):
            now[0] += 10 * seconds_a_step
            log.step(step, {"loss": 1.0}, total_steps=1000, seconds_left=0)
        assert len(read_lines(log._output_dir, "log.jsonl")) == 100
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("step 10/1000 ")
        assert lines[-1].startswith("step 1000/1000 ")
        return len(lines)

    assert printed(False, 0.1) == 100
    assert 28 <= printed(True, 0.1) <= 32
    assert printed(True, 7.0) == 100  # slow enough for one a minute


def test_one_figure_of_two_names_is_printed_once(tmp_path, capsys):
    figures = {"exact_match": 25.0, "exact": 25.0, "f1": 30.0, "HasAns_exact": 40.0}
    RunLog(tmp_path).evaluation(5, figures)
    assert read_lines(tmp_path, "eval_log.jsonl")[0].keys() >= figures.keys()
    shown = capsys.readouterr().out.replace("HasAns_exact", "").split()
    assert shown.count("exact") == 0
    assert shown.count("exact_match") == 1


def test_entries_found_while_running_are_added(tmp_path):
    write_json(tmp_path / "run.json", {"ledger": {}, "flags": {"seed": 3}})
    RunLog(tmp_path).record({"xla_clusters": 4})
    assert json.loads((tmp_path / "run.json").read_text()) == {
        "ledger": {},
        "flags": {"seed": 3},
        "xla_clusters": 4,
    }


def test_adding_without_a_run_json(tmp_path):
    with pytest.raises(UserError, match=r"run record: .*run\.json no longer exists"):
        RunLog(tmp_path).record({"xla_clusters": 4})
