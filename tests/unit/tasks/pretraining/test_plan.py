"""Plans of several phases: from flag files to the weights of the last phase."""

import contextlib
import functools
import json
import shutil

import pytest
from absl import flags

from bert_tf.model.flops import training_flops
from bert_tf.tasks.pretraining import phase_runs
from bert_tf.tasks.pretraining import run as pretraining
from bert_tf.tasks.pretraining.flags import define_pretraining_flags, pretraining_settings
from bert_tf.tasks.pretraining.phase_runs import plan_sections, run_phases
from bert_tf.tasks.pretraining.phases import phases_from_flags
from bert_tf.train import update_timing
from bert_tf.util.directory_lock import LOCK_NAME
from bert_tf.util.errors import UserError
from tests.helpers.files import content_of
from tests.helpers.tensors import assert_same_variables, variables_of
from tests.helpers.tiny_pretraining import CONFIG, P, S, write_records


@pytest.fixture(autouse=True, scope="module")
def timed_before():
    """Few of the tests are of the estimate of the time, for which a network is built and run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phase_runs, "seconds_per_update", lambda job: 0.25)
        patch.setattr(phase_runs, "peak_flops", lambda ranks, session, dtype: 1e9)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A directory with records and the configuration of a network."""
    directory = tmp_path_factory.mktemp("data")
    write_records(directory / "train")
    (directory / "bert_config.json").write_text(json.dumps(CONFIG.to_dict()))
    return directory


def plan_of(data, directory, *phases, given=()):
    """The phases with these lines in their files, and further flags; without any, a run's settings.

    The files are in ``directory``, the output in ``directory/model``.
    """
    files = []
    for number, lines in enumerate(phases, start=1):
        path = directory / f"{number}.flags"
        path.write_text("\n".join(lines))
        files.append(str(path))
    values = flags.FlagValues()
    define_pretraining_flags(values)
    values([
        "program", f"--output_dir={directory / 'model'}", f"--input_file={data / 'train'}",
        f"--bert_config_file={data / 'bert_config.json'}", "--do_train",
        f"--max_seq_length={S}", f"--max_predictions_per_seq={P}", "--precision=fp32",
        "--train_batch_size=4", "--num_warmup_steps=1", "--display_loss_steps=1",
        "--native_ops=false", "--optimizer_type=lamb", *given,
    ])  # fmt: skip
    if not phases:
        return pretraining_settings(values)
    values.phases = ",".join(files)
    return phases_from_flags(values, pretraining_settings)


@pytest.fixture
def plan(data, tmp_path):
    """:func:`plan_of` a test's own directory."""
    return functools.partial(plan_of, data, tmp_path)


FIRST, SECOND = ["--num_train_steps=4"], ["--num_train_steps=3", "--train_batch_size=2"]
RESUMED = ["--num_train_steps=7", "--resume_from=previous"]


@contextlib.contextmanager
def stop_in_phase_2():
    """Ends the second phase after its records were opened, like a kill before its first update."""
    prepare = pretraining.prepare_pretraining

    def prepare_first(settings, run, *inherited):
        if settings.run.output_dir.name == "phase_2" and not settings.run.dry_run:
            raise KeyboardInterrupt
        return prepare(settings, run, *inherited)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pretraining, "prepare_pretraining", prepare_first)
        yield


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """The output of a plan whose second phase resumes the first."""
    directory = tmp_path_factory.mktemp("finished")
    run_phases(plan_of(data, directory, FIRST, RESUMED))
    return directory / "model"


@pytest.fixture(scope="module")
def killed_once(data, tmp_path_factory):
    """The output of the same plan, which was killed in its second phase."""
    directory = tmp_path_factory.mktemp("killed")
    with stop_in_phase_2():
        run_phases(plan_of(data, directory, FIRST, RESUMED))
    return directory / "model"


@pytest.fixture
def killed(killed_once, tmp_path):
    """A copy of it, where a test's plans have their output."""
    return shutil.copytree(killed_once, tmp_path / "model")


@pytest.mark.slow
def test_phases_equal_single_runs(plan, tmp_path, capsys):
    run_phases(plan(FIRST, SECOND))
    found = [variables_of(tmp_path / "model" / f"phase_{n}") for n in (1, 2)]
    content = json.loads((tmp_path / "model" / "plan.json").read_text())
    assert [phase["state"] for phase in content["phases"]] == ["done", "done"]
    total = content["ledger"]["total"]
    assert (total["updates"], total["sequences"]) == (4 + 3, 4 * 4 + 3 * 2)
    flops = [content["ledger"][f"phase_{n}"]["model_flops"] for n in (1, 2)]
    assert sum(flops) == total["model_flops"]
    assert flops[0] / flops[1] == pytest.approx(16 / 6)
    shown = capsys.readouterr().out
    assert shown.index("-- plan --") < shown.index("step 1/4")
    assert f"its last checkpoint is {tmp_path / 'model' / 'phase_2' / 'model.ckpt-3'}" in shown

    alone = [f"--output_dir={tmp_path / 'first'}", *FIRST]
    pretraining.run(plan(given=alone))
    after = [
        f"--output_dir={tmp_path / 'second'}", f"--init_checkpoint={tmp_path / 'first'}", *SECOND
    ]  # fmt: skip
    pretraining.run(plan(given=after))
    assert_same_variables(found[0], variables_of(tmp_path / "first"))
    assert_same_variables(found[1], variables_of(tmp_path / "second"))


def assert_handed_over(directory, steps, updates, *, with_slots):
    content = json.loads((directory / "plan.json").read_text())
    assert content["phases"][1]["updates"] == updates
    last = variables_of(directory / "phase_2")
    assert int(last["global_step"]) == steps
    assert int(last["optimizer/update_count"]) == updates + 4 * with_slots


def test_a_phase_resumes_the_one_before(finished):
    assert_handed_over(finished, 7, 3, with_slots=True)


@pytest.mark.parametrize(
    "handed_over", [["--resume_from=previous", "--reset_step"], ["--init_checkpoint=previous"]]
)
@pytest.mark.slow
def test_what_is_handed_over(plan, killed, handed_over):
    """The second phase of a plan may be another one until it begins."""
    run_phases(plan(FIRST, ["--num_train_steps=3", *handed_over]))
    assert_handed_over(killed, 3, 3, with_slots=handed_over[0] == "--resume_from=previous")


@pytest.mark.exhaustive
def test_a_killed_plan_continues_where_it_was(plan, killed, finished, capsys):
    first = content_of(killed / "phase_1")
    run_phases(plan(["--num_train_steps=5"], RESUMED))
    shown = capsys.readouterr().out
    assert "phase_1 is done" in shown
    assert "--num_train_steps 4 -> 5" in shown
    assert_same_variables(variables_of(killed / "phase_2"), variables_of(finished / "phase_2"))
    assert content_of(killed / "phase_1") == first
    (killed / "phase_1" / LOCK_NAME).touch()  # as after a kill at the phase's end
    run_phases(plan(FIRST, RESUMED))
    assert "nothing to train" in capsys.readouterr().out
    assert content_of(killed / "phase_1") == first


def ledger_of(directory):
    content = json.loads((directory / "plan.json").read_text())
    names = ("name", "state", "updates", "sequences", "model_flops")
    return [{name: phase[name] for name in names} for phase in content["phases"]]


@contextlib.contextmanager
def stop_at_the_end_of_phase_2():
    """Like a kill after the last checkpoint, before the plan knows that the phase is done."""
    execute = phase_runs.execute

    def train_first(job):
        execute(job)
        run = job.settings
        if run.output_dir.name == "phase_2" and not run.dry_run:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(phase_runs, "execute", train_first)
        yield


@pytest.mark.parametrize("stop", [contextlib.nullcontext, stop_at_the_end_of_phase_2])
@pytest.mark.exhaustive
def test_a_killed_plan_has_the_ledger_of_one_that_was_not(plan, killed, finished, stop):
    with stop():
        run_phases(plan(FIRST, RESUMED))
    run_phases(plan(FIRST, RESUMED))
    expected = ledger_of(finished)
    assert [phase["updates"] for phase in expected] == [4, 3]
    assert ledger_of(killed) == expected


@pytest.mark.exhaustive
def test_a_first_phase_that_resumes_another_run_counts_its_own_updates(plan, killed_once, tmp_path):
    shutil.copytree(killed_once / "phase_1", tmp_path / "other")
    first = ["--num_train_steps=6"]
    given = [f"--resume_from={tmp_path / 'other'}"]
    with stop_in_phase_2():
        run_phases(plan(first, SECOND, given=given))
    shutil.rmtree(tmp_path / "other")  # a plan that has begun does not need it
    run_phases(plan(first, SECOND, given=given))
    assert [phase["updates"] for phase in ledger_of(tmp_path / "model")] == [2, 3]


def test_growing_updates_count_as_much_as_they_do(plan, capsys, monkeypatch):
    """Two updates of 2 sequences and two of 4, the first of them with 8 positions."""
    seen = []
    monkeypatch.setattr(phase_runs, "plan_sections", lambda e, f=plan_sections: (
        seen.extend(e) or f(e)
    ))  # fmt: skip
    grown = [
        "--num_train_steps=4", "--train_batch_size=2", "--num_accumulation_steps=2",
        "--batch_ramp=2:0,4:2", f"--length_ramp=8:0,{S}:1",
    ]  # fmt: skip
    run_phases(plan(grown, SECOND, given=["--dry_run"]))

    def flops(length, predictions):
        return training_flops(CONFIG, length=length, predictions=predictions, next_sentence=True)

    entry, second = seen
    short, whole = flops(8, 2), flops(S, P)
    assert (entry.updates, entry.sequences) == (4, 12)
    assert entry.model_flops == pytest.approx(2 * short + 10 * whole)
    assert entry.full_updates == pytest.approx((2 * short / whole + 10) / 4)
    assert entry.seconds == pytest.approx(entry.full_updates * entry.seconds_per_update)
    assert second.seconds == pytest.approx(3 * second.seconds_per_update)
    shown = capsys.readouterr().out
    assert f"model_flops={2 * short + 10 * whole:.0f}" in shown


@pytest.mark.slow
def test_a_dry_run_times_an_update_and_writes_nothing(plan, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(phase_runs, "seconds_per_update", update_timing.seconds_per_update)
    made = plan(FIRST, SECOND, given=["--dry_run"])
    before = content_of(tmp_path)
    run_phases(made)
    assert content_of(tmp_path) == before
    shown = capsys.readouterr().out
    assert shown.count("-- ledger --") == 2
    assert "-- plan --" in shown


@pytest.mark.parametrize(
    ("second", "sentence"),
    [
        (["--num_train_steps=3", "--max_seq_length=16"], "2.flags|--max_seq_length=16"),
        (["--num_train_steps=4", "--resume_from=previous"], "continues at step 4"),
        (["--num_train_steps=9", "--resume_from=previous", "--optimizer_type=adam"], "lamb, not w"),
        (["--num_train_steps=3", "--global_batch_size=7"], "cannot be divided"),
    ],
)
def test_what_is_wrong_in_the_second_phase_is_known_before_the_first(
    plan, tmp_path, second, sentence
):
    made = plan(FIRST, second)
    before = content_of(tmp_path)
    with pytest.raises(UserError, match=sentence):
        run_phases(made)
    assert content_of(tmp_path) == before


def test_another_network_or_vocabulary_in_the_second_phase(plan, tmp_path):
    wide = tmp_path / "wide.json"
    wide.write_text(json.dumps({**CONFIG.to_dict(), "hidden_size": 16}))
    with pytest.raises(UserError, match="hidden_size 8 -> 16; all phases train the same network"):
        run_phases(plan(FIRST, [*SECOND, f"--bert_config_file={wide}"]))
    write_records(tmp_path / "other", vocabulary="cd")
    with pytest.raises(UserError, match="different vocabulary than those of the previous phase"):
        run_phases(plan(FIRST, [*SECOND, f"--input_file={tmp_path / 'other'}"]))
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("phases", "sentence"),
    [
        ([["--output_dir=x"]], "1.flags: --output_dir is for the plan as a whole"),
        ([["--before_training=x"]], "1.flags: --before_training is for the plan as a whole"),
        ([["--init_checkpoint=previous"]], "names the previous phase, but this is the first"),
        ([FIRST, ["--rank_timeout=7"]], "2.flags: --rank_timeout must be the same"),
        ([FIRST, ["--nodo_train", "--do_eval"]], "2.flags: a phase trains; add --do_train"),
        ([FIRST, ["--num_train_step=7"]], "2.flags: --num_train_step is not a flag"),
        ([FIRST, ["--num_train_steps=x"]], "2.flags: .*whole number"),
        ([FIRST, ["--optimizer_type=adam", "--max_trust_ratio=3"]], "2.flags: --max_trust_ratio"),
    ],
)
def test_flags_of_a_phase_that_are_refused(plan, phases, sentence):
    with pytest.raises(UserError, match=sentence):
        plan(*phases)


def test_a_missing_file_of_a_phase(plan):
    with pytest.raises(UserError, match=r"--phases: none\.flags does not exist"):
        values = flags.FlagValues()
        define_pretraining_flags(values)
        values(["program", "--output_dir=x", "--phases=none.flags"])
        phases_from_flags(values, pretraining_settings)


def test_only_the_first_phase_starts_where_the_command_says(plan, tmp_path):
    made = plan(FIRST, SECOND, given=["--init_checkpoint=published", "--dllog_path=log.json"])
    runs = [phase.settings.run for phase in made]
    assert [run.start.init_checkpoint for run in runs] == [
        "published",
        str(tmp_path / "model" / "phase_1"),
    ]
    assert [run.log.dllog_path for run in runs] == ["log_phase_1.json", "log_phase_2.json"]


def test_a_directory_of_a_single_run_is_not_that_of_a_plan(plan, killed_once, tmp_path):
    shutil.copytree(killed_once / "phase_1", tmp_path / "model")
    with pytest.raises(UserError, match="contains a checkpoint of a run without --phases"):
        run_phases(plan(FIRST, SECOND))


def test_a_damaged_record_of_the_plan(plan, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "plan.json").write_text('{"phases": [{"name": "phase_1"}]}')
    with pytest.raises(UserError, match=r"plan.json has no content_sha256; restore the file"):
        run_phases(plan(FIRST, SECOND))
