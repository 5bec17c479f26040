"""The check of a GPU: types in modules, the parts' time, rows without a value, made-up data."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import pytest

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import checks, device, made_up, speeds
from benchmarks.gpu.hlo_types import (
    AFTER,
    BEFORE,
    CUBLAS,
    CUDNN,
    INPUTS,
    OUTPUTS,
    TRITON,
    dumped_types,
    of_operations,
    operation_types,
)
from benchmarks.gpu.lab import TINY, Lab
from benchmarks.gpu.rows import PART, Case, attempts, checked, has_failed, missing, table
from benchmarks.gpu.runs import Deadline, OutOfTimeError, RunError, Trained, run_program
from benchmarks.results import result
from benchmarks.sequences import squad_windows
from bert_tf.records.layouts import PRETRAINING_MASKED
from bert_tf.records.tfrecord import RecordSet
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from tests.helpers.programs import environment, run

# As XLA writes them: before optimizations, and after those for a GPU.
ASKED = """\
HloModule a, entry_computation_layout={(s32[4]{0}, f32[8,4]{1,0}, /*index=2*/f32[4]{0})->(f32[8,4]{1,0}, f32[])}

ENTRY gradients {
  arg0 = s32[4]{0} parameter(0), metadata={op_name="XLA_Args"}
  arg1.2 = f32[8,4]{1,0} parameter(1)
  convert.3 = bf16[8,4]{1,0} convert(arg1.2), metadata={op_type="Cast" op_name="dense/Cast"}
  dot.4 = bf16[8,8]{1,0} dot(convert.3, convert.3), metadata={op_name="dense/MatMul"}
  dot.5 = f32[8,8]{1,0} dot(bf16[8,4]{1,0} %convert.3, f32[8,4]{1,0} %arg1.2), lhs_contracting_dims={1}
  exponential.6 = f32[8,8]{1,0} exponential(dot.5), metadata={op_name="layer_0/self/Softmax"}
  exponential.7 = bf16[8,8]{1,0} exponential(dot.4), metadata={op_name="loss/Softmax"}
  ROOT tuple.8 = (f32[8,4]{1,0}, /*index=1*/f32[]) tuple(arg1.2, dot.5)
}
"""  # noqa: E501
RAN = """\
HloModule a, is_scheduled=true, entry_computation_layout={(f32[8,4]{1,0})->f32[8,8]{1,0}}

%gemm_computation (p.0: f16[8,4]) -> f16[8,8] {
  %p.0 = f16[8,4]{1,0} parameter(0)
  ROOT %dot.1 = f16[8,8]{1,0} dot(%p.0, %p.0), lhs_contracting_dims={1}
}

ENTRY %main (arg: f32[8,4]) -> f32[8,8] {
  %arg = f32[8,4]{1,0} parameter(0)
  %half = f16[8,4]{1,0} convert(%arg)
  %c.1 = (f32[8,8]{1,0}, s8[64]{0}) custom-call(%half, %half), custom_call_target="__cublas$lt$matmul"
  %c.2 = (f16[8,8]{1,0}, s8[64]{0}) custom-call(%half), custom_call_target="__cudnn$fmhaSoftmax"
  %c.3 = f32[8]{0} custom-call(%arg), custom_call_target="TopK"
  %t.1 = f16[8,8]{1,0} fusion(%half), calls=%gemm_computation, backend_config={"kind":"__triton_gemm"}
  ROOT %log.2 = f32[8,8]{1,0} log-plus-one(%arg)
}
"""  # noqa: E501


def test_types_of_operations():
    found = operation_types(ASKED)
    assert found["dot"] == {"bf16": 1, "bf16 x f32": 1}
    assert found["exponential"] == {"f32": 1, "bf16": 1}
    assert (found[INPUTS], found[OUTPUTS]) == ({"s32": 1, "f32": 2}, {"f32": 2})
    assert found["tuple"] == {"f32": 1}
    assert operation_types(ASKED, "self/Softmax") == {"exponential": {"f32": 1}}
    found = operation_types(RAN)
    assert [found[name] for name in ("dot", CUBLAS, CUDNN, TRITON)] == [{"f16": 1}] * 4
    assert (found["custom-call"], found["log-plus-one"]) == ({"f32": 1}, {"f32": 1})
    products = of_operations({"dot": {"f32": 1}, CUBLAS: {"f16": 3}}, ("dot", CUBLAS, "none"))
    assert list(products.items()) == [("f16", 3), ("f32", 1)]


def test_modules_that_xla_wrote(tmp_path):
    for name, text in {
        "module_0003.a_gradients__.7.before_optimizations": ASKED,
        "module_0003.a_gradients__.7.before_optimizations-memory": "a report",
        "module_0003.a_gradients__.7.sm_9.0_gpu_after_optimizations": RAN,
        "module_0004.a_gradients__.7.before_optimizations": ASKED,
    }.items():
        (tmp_path / f"{name}.txt").write_text(text)
    found = dumped_types(tmp_path, BEFORE)
    assert {name: types["exponential"] for name, types in found.items()} == {
        "a_gradients__.7": {"f32": 2, "bf16": 2}  # two shapes
    }
    assert [types[CUBLAS] for types in dumped_types(tmp_path, AFTER).values()] == [{"f16": 1}]


class StandIn(Lab):
    """Has results of runs instead of running anything."""

    def __init__(self, work, peaks=(), curves=None, text=ASKED):
        super().__init__(work, TINY, sys.executable, {}, None, Deadline(1.0, 1.0))
        self.seen = {"gpus": []}
        self._peaks, self._curves, self._text = dict(peaks), curves or {}, text

    def train_shape(self, shape, **more):
        found = self._peaks[shape.batch]
        if isinstance(found, Exception):
            raise found
        return Trained(self.work, {"training": {"peak_gpu_memory_bytes": found * 2**30}}, [], 0)

    def small_run(self, precision, *, use_xla=True, seed=1):
        name = f"{precision}{'' if use_xla else ' without XLA'}{', another seed' * (seed == 2)}"
        log = [{"step": 10 * n, "loss": loss} for n, loss in enumerate(self._curves.get(name, []))]
        (self.work / "module_0001.a.before_optimizations.txt").write_text(self._text)
        policy = dict.fromkeys(("softmax", "loss", "activations", "layer_norm"), "float32")
        policy.update(dict.fromkeys(("attention", "dense", "logits", "embeddings"), "bfloat16"))
        return Trained(self.work, {"ledger": {"precision": policy}}, log, 0), self.work


def passed(rows):
    return {row["name"].partition(": ")[2]: row["config"]["passed"] for row in rows}


def test_types_are_held_against_the_policy(tmp_path):
    found = passed(checks._types_of(StandIn(tmp_path), "bf16"))
    assert {what for what, ok in found.items() if not ok} == {"exponentials (softmax)"}
    lab = StandIn(tmp_path, text=ASKED.replace("bf16", "f32"))
    assert {what for what, ok in passed(checks._types_of(lab, "bf16")).items() if not ok} == {
        "products"  # none of them in half precision
    }
    lab = StandIn(tmp_path, text="HloModule empty")
    with pytest.raises(RunError, match="no products"):
        list(checks._types_of(lab, "bf16"))


def test_differences_of_curves(tmp_path):
    curves = {"fp32": [5, 4, 3], "bf16": [5, 4, 3.5], "fp16": [5, 4.25, 3], "fp32 without XLA": []}
    rows = {row["name"]: row for row in checks.curves(StandIn(tmp_path, curves=curves))}
    assert rows["bf16 to fp32, largest"]["value"] == 0.5
    assert rows["fp16 to fp32, largest"]["value"] == 0.25
    assert rows["bf16, last loss"]["value"] == 3.5
    assert rows["fp32 without XLA"]["config"]["reason"] == "it logged no loss"
    assert "fp16 to fp32 without XLA, largest" not in rows


@pytest.mark.parametrize(
    ("at_prediction", "state"),
    [
        (0.9, "verified"),
        (1.1, "predicted; its peak is too high"),
        (RunError("out of memory"), "predicted; it failed: out of memory"),
        (OutOfTimeError("late"), "predicted; no time to try it"),
    ],
)
def test_the_largest_batch_is_predicted_and_tried(tmp_path, at_prediction, state):
    # A thousandth of a GiB per sequence and half of one without any; the limit is 1 GiB.
    lab = StandIn(tmp_path, {4: 0.504, 256: 0.756, 500: at_prediction, 499: at_prediction})
    rows = speeds._largest(lab, "network, fp32", {"precision": "fp32"})
    row = next(rows)
    assert row["value"] in (499, 500)
    assert row["config"]["state"] == state
    assert row["config"]["gib_per_sequence"] == pytest.approx(0.001)
    if isinstance(at_prediction, OutOfTimeError):
        with pytest.raises(OutOfTimeError):
            next(rows)


def failing(error):
    def measure():
        yield result("before", 1.0, "s", {})
        raise error

    return measure


def test_a_case_that_fails_is_a_row_and_lack_of_time_ends_all():
    good = Case("good", lambda: iter([result("fine", 2.0, "s", {})]))
    bad = Case("bad", failing(RunError("out of memory.")), "GiB")
    rows = list(attempts([bad, good]))
    assert [(row["name"], row["value"]) for row in rows] == [
        ("before", 1.0), ("bad", None), ("fine", 2.0)]  # fmt: skip
    assert (rows[1]["config"]["reason"], rows[1]["unit"]) == ("out of memory", "GiB")
    late = Case("late", failing(OutOfTimeError("killed after 3 s")))
    rows = []
    with pytest.raises(OutOfTimeError):
        for row in attempts([late, good]):
            rows.append(row)
    assert [row["name"] for row in rows] == ["before", "late", "good"]
    assert {row["config"]["reason"] for row in rows[1:]} == {"killed after 3 s"}
    failed = [missing("a", "s", RunError("x")), checked("b", 2.0, "s", bound=1.0)]
    not_failed = [
        missing("c", "s", OutOfTimeError("x")), missing("d", "s", RunError("no torch"), "peer"),
        checked("e", 1.0, "s", bound=1.0),
    ]  # fmt: skip
    assert [has_failed(row) for row in (*failed, *not_failed)] == [True, True, *[False] * 3]


class Clock:
    """Stands still unless a part takes time."""

    now = 100.0

    def __call__(self):
        return self.now


def test_parts_share_the_time_and_fail_alone(tmp_path, capsys):
    clock, lab = Clock(), StandIn(tmp_path)

    def taking(seconds, error=None):
        def measure(lab):
            clock.now += seconds
            yield result("rate", 3.0, "sequences/s", {"types": {"bf16": 2, "f32": 1}})
            if error is not None:
                raise error

        return measure

    parts = {
        "quick": gpu.Part(taking(10), 50),
        "late": gpu.Part(taking(70, OutOfTimeError("sleep was killed")), 25),
        "broken": gpu.Part(taking(1, KeyError("training")), 25),
        "never": gpu.Part(taking(1), 25),
    }
    rows = list(gpu.run_parts(parts, lab, gpu.Budget(clock.now + 100, clock)))
    ends = {row["config"]["part"]: row for row in rows if row["unit"] == PART}
    assert [row["name"] for row in ends.values()] == ["done", "killed", "failed", "done"]
    limits = [row["config"]["limit_seconds"] for row in ends.values()]
    # 100 x 50 / 125, then 90 x 25 / 75, then the 20 s that are left in halves, then all.
    assert limits == pytest.approx([40, 30, 10, 19])
    assert [row["config"]["seconds"] for row in ends.values()] == pytest.approx([10, 70, 1, 1])
    assert ends["broken"]["config"]["reason"] == "KeyError: 'training'"
    with pytest.raises(UserError, match=r"^not as it should be: broken \(failed\); the table"):
        gpu.raise_failures(rows)
    (late,) = gpu.run_parts({"late": parts["late"]}, lab, gpu.Budget(clock.now + 1, clock))
    assert (late["name"], late["config"]["seconds"]) == ("skipped", 0)
    lines = table(rows)
    assert [line for line in lines if not line.startswith(" ")] == list(parts)
    assert lines[1].split() == ["rate", "3", "sequences/s", "2", "bf16,", "1", "f32"]
    assert lines[5].split() == ["killed", "1m10s", "sleep", "was", "killed"]
    assert "late: at most 30s" in capsys.readouterr().out


# A program that starts another one; both hold the pipe open and wait.
PROGRAM = """
import os, signal, sys
os.open(sys.argv[1], os.O_WRONLY)
os.fork()
print("update 3 of 9", flush=True)
signal.pause()
"""


def test_a_program_is_killed_with_all_that_it_started(tmp_path):
    pipe, output = tmp_path / "pipe", tmp_path / "output.txt"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def clock():
        lines = output.read_text().count("\n") if output.exists() else 0
        return 60.0 if lines == 2 else 0.0

    with pytest.raises(OutOfTimeError, match=r"^it was killed after \d+ s \(update 3 of 9\)$"):
        run_program([sys.executable, "-c", PROGRAM, str(pipe)], output, label="it",
                    deadline=Deadline(30, 30.0, clock), environment=environment())  # fmt: skip
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b"", "no process is left that could write"
    os.close(reader)
    with pytest.raises(OutOfTimeError, match="no time was left for it"):
        run_program(["none"], output, label="it", deadline=Deadline(1, 0.0), environment={})


def test_a_program_that_fails_says_why(tmp_path):
    lab = StandIn(tmp_path)
    lab.deadline = Deadline(60, 60.0, lambda: 0.0)
    for program, reason in (
        ("import sys; print('error: --x is wrong.'); print('bye'); sys.exit(2)", "--x is wrong."),
        ("raise ValueError('no')", "ValueError: no"),
        ("import os; print('---'); os._exit(3)", "ended with status 3"),
    ):
        with pytest.raises(RunError, match=f"^{reason}$"):
            lab.in_peer_python("-c", program)
    assert lab.in_peer_python("-c", "print('a'); print('{\"b\": 1}')") == {"b": 1}


def test_made_up_data_are_full_sequences(tmp_path):
    made_up.write_records(tmp_path / "records", 6, vocab_size=50, length=16)
    (path,) = (tmp_path / "records").glob("*.tfrecord")
    records = [PRETRAINING_MASKED.decode(record) for record in RecordSet([path]).read(range(6))]
    assert all(record["input_mask"].all() for record in records)
    for record in records:
        masked = record["input_ids"][record["masked_lm_positions"]]
        assert (masked == 4).all()
        assert record["masked_lm_ids"].min() >= 5
    assert np.mean([record["input_ids"] for record in records]) < 20, "the first are frequent"
    made_up.write_vocabulary(tmp_path / "vocab.txt", 50)
    assert len((tmp_path / "vocab.txt").read_text().split()) == 50
    made_up.write_squad(tmp_path / "squad.json", 5, vocab_size=50, length=32)
    windows = squad_windows(
        tmp_path / "squad.json", flag="train_file", training=True, work_dir=tmp_path,
        tokenizer_files=TokenizerFiles(tmp_path / "vocab.txt", do_lower_case=True),
        max_seq_length=32,
    )  # fmt: skip
    assert windows.lengths.tolist() == [32] * 5


def test_what_the_driver_says_and_where_tools_are(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho NVIDIA H200, 580.1, 9.0, 143771\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert device.driver_report() == [
        {"name": "NVIDIA H200", "driver": "580.1", "compute_capability": "9.0",
         "memory_mib": "143771"}
    ]  # fmt: skip
    cuda = tmp_path / "my cuda"
    (cuda / "bin").mkdir(parents=True)
    (cuda / "bin" / "ptxas").touch()
    monkeypatch.setenv("XLA_FLAGS", f'--xla_gpu_cuda_data_dir="{cuda}" --other')
    assert device.find_tool("bin/ptxas") == str(cuda / "bin" / "ptxas")
    monkeypatch.setenv("PATH", "")
    assert device.driver_report() == []
    assert device.find_tool("no/such/file") is None


def test_the_peer_is_given_its_own_environment(tmp_path):
    lab = StandIn(tmp_path)
    lab.deadline = Deadline(60, 60.0, lambda: 0.0)
    lab.environment = {"PYTHONPATH": "ours", "HOME": "/home"}
    program = "import json, os; print(json.dumps(dict(os.environ)))"
    assert lab.in_peer_python("-c", program)["PYTHONPATH"] == "ours"
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    lab.peer_python = str(other)
    found = lab.in_peer_python("-c", program)
    assert "PYTHONPATH" not in found
    assert (found["HOME"], found["USE_TF"]) == ("/home", "0")


def check(tmp_path, *flags, timeout):
    path = tmp_path / "gpu.json"
    done = run("-m", "benchmarks.gpu", "--size=tiny", f"--json={path}", *flags, check=False,
               timeout=timeout, fresh=True)  # fmt: skip
    rows = json.loads(path.read_text())
    assert all(set(row) == {"name", "subject", "value", "unit", "config"} for row in rows)
    return done, {(row["config"]["part"], row["name"]): row for row in rows}


def test_a_table_and_json_although_there_is_no_time(tmp_path):
    done, rows = check(tmp_path, "--parts=starts,device", "--minutes=0.05", timeout=300)
    assert done.returncode == 0, done.stderr
    ends = {part: name for (part, name), row in rows.items() if row["unit"] == PART}
    assert ends["starts"] in ("killed", "skipped"), "a training takes longer than that"
    assert ends["device"] in ("killed", "skipped", "done")
    assert done.stdout.count(f"  {ends['starts']} ") >= 2, "when it happens, and in the table"


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_all_parts_on_a_cpu(tmp_path):
    pytest.importorskip("transformers")
    done, rows = check(tmp_path, "--minutes=35", timeout=2300)
    # Bounds in seconds are a GPU's; a busy CPU may miss them.
    missed = [row["unit"] for row in rows.values() if row["config"].get("passed") is False]
    assert set(missed) <= {"s"}, done.stderr
    assert done.returncode == (2 if missed else 0), done.stderr
    ends = {part: name for (part, name), row in rows.items() if row["unit"] == PART}
    assert ends == dict.fromkeys(gpu.PARTS, "done")
    reasons = [row["config"]["reason"] for row in rows.values() if row["value"] is None]
    assert not reasons
    assert rows["types", "bf16, asked for: products"]["config"]["types"]["bf16"] > 30
    assert rows["curves", "fp32 without XLA to fp32, largest"]["value"] < 1e-4
    assert rows["curves", "bf16 to fp32, largest"]["value"] < 0.02
    assert rows["resume", "arrays that differ after a kill"]["config"]["resumed_at"] > 0
    for shape in map(str, TINY.speed):
        assert rows["speed", f"{shape}, ours to it"]["value"] > 0
