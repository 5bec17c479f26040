"""Teachers, and what students start from: the real job in this process, on a tiny network."""

import collections
import dataclasses
import json
import shutil

import numpy as np
import pytest

from bert_tf.checkpoint.formats import open_source
from bert_tf.checkpoint.tensorflow_file import write_checkpoint
from bert_tf.commands.convert import convert
from bert_tf.model_directory.record import write_model_files
from bert_tf.tasks.distillation import teacher as distillation
from bert_tf.tasks.distillation.settings import DistillationSettings
from bert_tf.tasks.distillation.teacher import open_teacher
from bert_tf.tasks.pretraining import run as pretraining
from bert_tf.text.tokenizer_files import TokenizerFiles
from tests.helpers.forward_passes import pretraining_specs
from tests.helpers.jobs import begun
from tests.helpers.settings import with_values
from tests.helpers.tensors import assert_same_variables, variables_of
from tests.helpers.tiny_pretraining import CONFIG, S, V, pretraining_settings, refuse
from tests.helpers.torch_networks import random_values

LAYERS = 4
TEACHER = dataclasses.replace(CONFIG, num_hidden_layers=LAYERS)
HEAD = "cls/predictions"
DRY = {"dry_run": True}
MOMENT = "bert/encoder/layer_0/output/dense/kernel/adam_m"


def write_teacher(directory, config=TEACHER, *, head=True, state=None):
    """A model directory with random weights; ``state`` is what else its checkpoint has."""
    directory.mkdir()
    write_model_files(directory, config, TokenizerFiles())
    values = random_values(pretraining_specs(config, next_sentence=False), seed=9)
    kept = {name: v for name, v in values.items() if head or not name.startswith(HEAD)}
    write_checkpoint(str(directory / "model.ckpt-7"), {**kept, **(state or {})})
    (directory / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-7"\n')
    return directory


@pytest.fixture(scope="module", name="teacher")
def shared_teacher(tmp_path_factory):
    return write_teacher(tmp_path_factory.mktemp("teacher") / "model")


def distilling(directory, teacher, *, network=None, changes=None, **settings):
    """One update by which a student does not change, since its rate is next to nothing.

    ``settings`` are those of the distillation, ``changes`` those of the run and its updates.
    """
    directory.mkdir(exist_ok=True)
    usual = pretraining_settings(directory)
    # Nothing is to be measured: what would be faster does not matter here.
    changes = {"learning_rate": 1e-30, "native_ops": False, **(changes or {})}
    return dataclasses.replace(
        with_values(usual, **changes),
        bert_config_file=None,
        next_sentence=False,
        network=network or {},
        distillation=DistillationSettings(str(teacher), **settings),
    )


def record_of(settings):
    return json.loads((settings.run.output_dir / "run.json").read_text())


def start_of(settings):
    """What the student starts from."""
    return variables_of(settings.run.output_dir / "model.ckpt-1")


def weights_of(teacher):
    return variables_of(teacher / "model.ckpt-7")


def assert_starts_from(found, known, layers):
    """Whether the encoder's layers are those of a teacher, and everything else is the same."""
    copied = 0
    for name, value in found.items():
        scope = "bert/encoder/layer_"
        source = name
        if name.startswith(scope):
            number, _, rest = name[len(scope) :].partition("/")
            source = f"{scope}{layers[int(number)]}/{rest}"
        if source in known:
            np.testing.assert_array_equal(value, known[source], err_msg=name)
            copied += 1
    assert copied == 16 * len(layers) + 5 + 5, "layers, embeddings and the head"


@pytest.fixture(scope="module", name="calls")
def counted_calls():
    """How often the run of ``distilled`` called some functions."""
    return collections.Counter()


@pytest.fixture(scope="module", name="distilled")
def finished_run(teacher, calls, tmp_path_factory):
    """The settings of a run that trained and evaluated."""
    directory = tmp_path_factory.mktemp("distilled")
    settings = distilling(directory, teacher, changes={"do_eval": True})
    data = dataclasses.replace(settings.data, eval_files=settings.data.train_files)
    settings = dataclasses.replace(settings, data=data)

    def counting(name, function):
        return lambda *arguments: calls.update([name]) or function(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("open_source", "_digest"):
            patch.setattr(distillation, name, counting(name, getattr(distillation, name)))
        pretraining.run(settings)
    return settings


@pytest.mark.slow
def test_a_student_starts_from_every_second_layer(distilled, teacher):
    assert record_of(distilled)["model"]["num_hidden_layers"] == LAYERS // 2
    assert_starts_from(start_of(distilled), weights_of(teacher), [0, 2])


def test_nothing_of_the_teacher_is_kept(distilled):
    names = start_of(distilled).keys()
    assert not [name for name in names if "teacher" in name or "layer_2" in name]
    assert MOMENT in names
    config = json.loads((distilled.run.output_dir / "bert_config.json").read_text())
    assert config == {**TEACHER.with_explicit_gelu().to_dict(), "num_hidden_layers": 2}


def test_the_ledger_and_the_log_of_a_distillation(distilled, teacher):
    section = record_of(distilled)["ledger"]["distillation"]
    assert len(section.pop("teacher_sha256")) == 64
    assert section == {
        **{"teacher": str(teacher), "teacher_layers": LAYERS, "teacher_hidden_size": 8},
        **{"alpha_ce": 5.0, "alpha_label": 2.0, "alpha_cos": 1.0, "alpha_hidden": 0.0},
        **{"alpha_attention": 0.0, "temperature": 2.0, "restrict_ce_to_mask": False},
        **{"min_target_probability": 0.0, "top_k_targets": None},
    }
    [line] = (distilled.run.output_dir / "log.jsonl").read_text().splitlines()
    line = json.loads(line)
    assert 0 < line["cosine_distance"] < 2
    terms = {
        "soft_targets": 5 * 2**2 * line["soft_targets_divergence"],
        "masked_lm": 2 * line["masked_lm_cross_entropy"],
        "cosine": line["cosine_distance"],
    }
    for term, loss in terms.items():
        assert line[f"{term}_loss"] == pytest.approx(loss)
    assert line["loss"] == pytest.approx(sum(terms.values()))


def test_an_evaluation_is_that_of_the_student_alone(distilled):
    """As that of its directory by a run without a teacher: of words, without any factor."""
    stored = json.loads((distilled.run.output_dir / "eval_results.json").read_text())
    assert not [name for name in stored if "soft" in name or "cosine" in name]
    run = dataclasses.replace(distilled.run, do_train=False)
    assert pretraining.run(dataclasses.replace(distilled, run=run, distillation=None)) == stored


def with_layers(tmp_path, teacher, layers, **network):
    settings = distilling(tmp_path / "run", teacher, student_layers=layers, network=network)
    pretraining.run(settings)
    return start_of(settings)


@pytest.mark.exhaustive
def test_chosen_layers_in_their_order(teacher, tmp_path, capsys):
    found = with_layers(tmp_path, teacher, (3, 1, 1))
    assert_starts_from(found, weights_of(teacher), [3, 1, 1])
    assert "the student starts from layers 3, 1, 1 of its teacher's 4" in capsys.readouterr().out


RANDOM = {
    "wider": ({"intermediate_size": 6}, None, "its intermediate_size is 6 and its teacher's 8"),
    "deeper": ({"num_hidden_layers": 5}, None, "it has more layers"),
    "as chosen": ({}, (), "(--student_layers=none)"),
}


@pytest.mark.parametrize(("network", "layers", "reason"), RANDOM.values(), ids=RANDOM)
@pytest.mark.exhaustive
def test_a_student_that_does_not_start_from_its_teacher(
    teacher, tmp_path, capsys, network, layers, reason
):
    settings = distilling(
        tmp_path / "run", teacher, network=network, student_layers=layers, changes=DRY
    )
    pretraining.run(settings)
    said = capsys.readouterr().out
    assert "the student starts from random weights" in said
    assert reason in said
    assert "variables restored" not in said


@pytest.mark.exhaustive
def test_a_narrower_student_learns_a_projection_of_its_own(teacher, tmp_path):
    settings = distilling(
        tmp_path / "run", teacher, network={"hidden_size": 4}, alpha_hidden=1.0,
        alpha_attention=1.0, changes={"learning_rate": 1e-3},
    )  # fmt: skip
    pretraining.run(settings)
    found = start_of(settings)
    assert found["distillation/projection/kernel"].shape == (4, 8)
    # Random weights are small, unlike the teacher's.
    name = "bert/embeddings/word_embeddings"
    assert np.abs(found[name]).max() < 0.05 < weights_of(teacher)[name].max()
    [line] = (settings.run.output_dir / "log.jsonl").read_text().splitlines()
    assert {"hidden_squared_error", "attention_squared_error"} < json.loads(line).keys()


@pytest.fixture(scope="module", name="converted")
def teacher_of_huggingface(teacher):
    directory = teacher.parent / "converted"
    convert(open_source(teacher), directory, "huggingface")
    return directory


def test_a_hash_is_that_of_the_weights(teacher, converted, tmp_path):
    """In every format; beside moments, as in the checkpoints of a run; and with other files."""

    def hash_of(path):
        return open_teacher(DistillationSettings(str(path)), begun()).weights_digest

    shape = weights_of(teacher)["bert/encoder/layer_0/output/dense/kernel"].shape
    moments = {MOMENT: np.full(shape, 0.5, np.float32)}
    expected = hash_of(teacher)
    assert hash_of(write_teacher(tmp_path / "run_of_its_own", state=moments)) == expected
    assert hash_of(converted) == expected
    assert hash_of(write_teacher(tmp_path / "bare", head=False)) != expected


@pytest.mark.exhaustive
def test_a_teacher_in_another_format_is_the_same_teacher(distilled, converted, tmp_path):
    """Gradients are the same to the bit, and with them the moments."""
    settings = distilling(tmp_path / "run", converted)
    pretraining.run(settings)
    section = record_of(distilled)["ledger"]["distillation"]
    assert record_of(settings)["ledger"]["distillation"] == {**section, "teacher": str(converted)}
    assert_same_variables(start_of(settings), start_of(distilled))


def test_a_teacher_is_opened_and_hashed_once(distilled, calls):
    assert calls == {"open_source": 1, "_digest": 1}


def resumed(settings, **changes):
    """The same run for one more step, with other settings of the distillation."""
    return dataclasses.replace(
        settings,
        optimization=with_values(settings.optimization, num_train_steps=2),
        distillation=with_values(settings.distillation, **changes),
    )


@pytest.mark.exhaustive
def test_what_changes_in_a_resumed_run_is_said(distilled, teacher, tmp_path, capsys):
    directory = tmp_path / "model"
    shutil.copytree(distilled.run.output_dir, directory)
    run = with_values(distilled.run, output_dir=directory, do_eval=False)
    settings = dataclasses.replace(distilled, run=run)
    other = shutil.copytree(teacher, tmp_path / "other")
    values = {name: value + 1 for name, value in weights_of(teacher).items()}
    write_checkpoint(str(other / "model.ckpt-7"), values)
    capsys.readouterr()
    settings = resumed(
        settings, teacher_checkpoint=str(other), alpha_ce=3.0, top_k_targets=4, temperature=1.0
    )
    pretraining.run(settings)
    [line] = [x for x in capsys.readouterr().out.splitlines() if x.startswith("changed since")]
    for change in (
        f"distillation.teacher {teacher} -> {other}",
        "distillation.teacher_sha256 ",
        "distillation.alpha_ce 5 -> 3",
        "distillation.temperature 2 -> 1",
        "distillation.top_k_targets None -> 4",
    ):
        assert change in line
    assert "alpha_cos" not in line
    assert record_of(settings)["ledger"]["steps"]["start_step"] == 1


def test_a_bare_encoder_can_teach_hidden_states(tmp_path):
    bare = write_teacher(tmp_path / "bare", head=False)
    pretraining.run(distilling(tmp_path / "run", bare, alpha_ce=0.0, changes=DRY))
    refuse(
        distilling(tmp_path / "other", bare),
        f"--teacher_checkpoint={bare} has no masked-LM head, so it gives no soft targets",
        "or give --alpha_ce=0.",
    )


# The settings of the distillation, of the student's network and of the run, and words.
REFUSED = {
    "no such teacher": (
        {"teacher_checkpoint": "/nowhere"}, {}, {},
        "--teacher_checkpoint=/nowhere does not exist; give a model directory",
    ),
    "a published name": (
        {"teacher_checkpoint": "bert-base-uncased"}, {}, {},
        "--teacher_checkpoint=bert-base-uncased is neither a file nor a directory",
    ),
    "nothing to learn": (
        {"alpha_ce": 0.0, "alpha_cos": 0.0}, {}, {},
        "no teacher loss is enabled: all of --alpha_ce, --alpha_cos, --alpha_hidden and "
        "--alpha_attention are 0; raise one,",
    ),
    "another number of words": (
        {}, {"vocab_size": V + 4}, {},
        f"the student scores {V + 4} classes and the teacher {V}; give a teacher with the same",
    ),
    "more layers to compare": (
        {"alpha_hidden": 1.0}, {"num_hidden_layers": 6}, {},
        "the student has 6 layers and the teacher 4, but --alpha_hidden and --alpha_attention",
    ),
    "other heads": (
        {"alpha_attention": 1.0}, {"num_attention_heads": 4}, {},
        "--alpha_attention compares heads, but the student has 4 and the teacher 2; give "
        "--num_attention_heads=2 or --alpha_attention=0.",
    ),
    "scores that are not kept": (
        {"alpha_attention": 1.0}, {}, {"recompute": True},
        "--alpha_attention needs the attention scores, which --recompute discards; drop one",
    ),
    "a layer beyond the last": (
        {"student_layers": (0, 4)}, {}, {},
        "--student_layers=0,4: the teacher has 4 layers, counted from 0, and no layer 4.",
    ),
    "a layer before the first": (
        {"student_layers": (-1, 2)}, {}, {},
        "--student_layers=-1,2: the teacher has 4 layers, counted from 0, and no layer -1.",
    ),
    "too few layers": (
        {"student_layers": (0, 2)}, {"num_hidden_layers": 3}, {},
        "--student_layers=0,2 names 2 layers, but the student has 3.",
    ),
    "layers of another width": (
        {"student_layers": (0, 2)}, {"hidden_size": 4}, {},
        "--student_layers cannot be copied, since its hidden_size is 4 and its teacher's 8; drop",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("distillation", "network", "changes", "words"), REFUSED.values(), ids=REFUSED
)
def test_refused_before_anything_is_written(
    teacher, tmp_path, distillation, network, changes, words
):
    settings = distilling(
        tmp_path / "run", teacher, network=network, changes=changes,
        **{name: v for name, v in distillation.items() if name != "teacher_checkpoint"},
    )  # fmt: skip
    path = distillation.get("teacher_checkpoint", settings.distillation.teacher_checkpoint)
    distillation = dataclasses.replace(settings.distillation, teacher_checkpoint=path)
    refuse(dataclasses.replace(settings, distillation=distillation), words)


@pytest.mark.parametrize("layers", [(0, 2), ()], ids=["some", "none"])
def test_layers_of_a_student_that_starts_from_other_weights(teacher, tmp_path, layers):
    changes = {"init_checkpoint": str(teacher)}
    settings = distilling(tmp_path / "run", teacher, student_layers=layers, changes=changes)
    refuse(
        settings,
        f"--student_layers chooses layers of the teacher, or random weights, but "
        f"--init_checkpoint={teacher} gives the weights to start from; drop one of them.",
    )


def test_sequences_that_the_teacher_has_no_positions_for(tmp_path):
    short = write_teacher(
        tmp_path / "short", dataclasses.replace(TEACHER, max_position_embeddings=S - 1)
    )
    settings = distilling(tmp_path / "run", short, network={"max_position_embeddings": S})
    refuse(settings, f"have {S} tokens, more than the teacher's max_position_embeddings=11")


def test_a_teacher_of_another_vocabulary(teacher, tmp_path):
    other = shutil.copytree(teacher, tmp_path / "other")
    (other / "vocab.txt").write_text("\n".join(f"w{i}" for i in range(V)))
    refuse(
        distilling(tmp_path / "run", other),
        f"--teacher_checkpoint={other}: it has a different vocabulary ({other / 'vocab.txt'})",
        "; teacher and student must have the same vocabulary.",
    )


def test_the_configuration_of_a_teacher(teacher, tmp_path):
    bare = shutil.copytree(teacher, tmp_path / "bare")
    config_file = tmp_path / "teacher.json"
    (bare / "bert_config.json").rename(config_file)
    (bare / "model.json").unlink()  # which states it as well
    settings = distilling(tmp_path / "run", bare)
    refuse(
        settings,
        f"--teacher_checkpoint={bare} comes without a configuration; give --teacher_config_file.",
    )

    def with_config(path, **changes):
        values = {**TEACHER.to_dict(), **changes}
        other = tmp_path / "changed.json"
        other.write_text(json.dumps(values))
        distillation = dataclasses.replace(
            settings.distillation, teacher_checkpoint=str(path), teacher_config_file=other
        )
        return dataclasses.replace(settings, distillation=distillation)

    refuse(with_config(bare, num_hidden_layers=5), "it lacks bert/encoder/layer_4/")
    refuse(
        with_config(teacher, num_attention_heads=4),
        f"--teacher_checkpoint={teacher}: its configuration {teacher / 'bert_config.json'} differs",
        "num_attention_heads",
        "; give the configuration that the teacher was trained with.",
    )
    settings = with_config(bare)
    run = with_values(settings.run, **DRY)
    pretraining.run(dataclasses.replace(settings, run=run))
