"""run_squad.py's job before its first update: refused input, and files written by then."""

import json

import pytest
from absl import flags as absl_flags

from bert_tf.finetune.run import open_run
from bert_tf.records.sequences import SequenceStage
from bert_tf.tasks.question_answering import run as squad_task
from bert_tf.tasks.question_answering.examples import read_squad
from bert_tf.tasks.question_answering.settings import define_squad_flags, squad_settings
from bert_tf.train.run import begin
from bert_tf.util.errors import UserError
from tests.helpers.files import content_of
from tests.helpers.settings import with_values
from tests.helpers.small_span_model import CONFIG, VOCABULARY, write_model
from tests.helpers.squad_files import LENGTHS, write_squad


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A model with a span head and questions to train it on."""
    directory = tmp_path_factory.mktemp("start")
    write_squad(directory / "train.json", 3, seed=1)
    return write_model(directory / "model")


def settings_of(start, output_dir, *more):
    values = absl_flags.FlagValues()
    define_squad_flags(values)
    flags = [
        f"--train_file={start.parent / 'train.json'}",
        f"--output_dir={output_dir}",
        *LENGTHS,
        "--precision=fp32",
        "--train_batch_size=4",
        "--do_train",
    ]
    values(["run_squad.py", *flags, *more])
    return squad_settings(values)


@pytest.fixture(name="others")
def wrong_files(tmp_path):
    """A vocabulary and a configuration that fit the model in size and shapes."""
    directory = tmp_path / "others"
    directory.mkdir()
    words = [*VOCABULARY[:5], *reversed(VOCABULARY[5:])]
    (directory / "vocab.txt").write_text("".join(f"{entry}\n" for entry in words))
    config = {**CONFIG.to_dict(), "num_attention_heads": 4}
    (directory / "bert_config.json").write_text(json.dumps(config))
    return directory


EPOCHS = "the at most 189 steps of --num_train_epochs=3"
WRONG = {
    "warm-up beyond all epochs": (
        "--num_warmup_steps=190",
        f"--num_warmup_steps=190 is more than {EPOCHS}",
    ),
    "negative warm-up": ("--num_warmup_steps=-1", "--num_warmup_steps=-1 must not be negative"),
    "workers": ("--num_workers=-1", "--num_workers=-1 must not be negative"),
    "vocabulary": ("--vocab_file={others}/vocab.txt", "a different vocabulary ({start}/vocab.txt)"),
    "heads": ("--bert_config_file={others}/bert_config.json", "num_attention_heads 2 -> 4"),
    "warm-up": ("--num_train_steps=3 --num_warmup_steps=4", "--num_warmup_steps=4"),
    "batch": ("--global_batch_size=9", "--global_batch_size=9"),
    "checkpoint": ("--init_checkpoint={start}/mistyped", "mistyped"),
}


@pytest.mark.parametrize(("flags", "words"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("dry_run", [False, True], ids=["real", "dry"])
def test_a_refused_run_leaves_nothing(start, others, tmp_path, monkeypatch, flags, words, dry_run):
    flags = flags.format(others=others, start=start).split()
    output_dir = tmp_path / "out"
    given = [f"--init_checkpoint={start}", *flags, f"--dry_run={dry_run}"]
    monkeypatch.setattr(SequenceStage, "build", None)  # records would take long to make
    with pytest.raises(UserError) as error:
        squad_task.run(settings_of(start, output_dir, *given))
    assert words.format(start=start) in str(error.value)
    assert not content_of(output_dir)
    assert not (dry_run and output_dir.exists())


def test_a_warm_up_longer_than_the_epochs_of_the_records(start, tmp_path):
    """The text alone does not show it, since it has fewer tokens than characters."""
    given = [f"--init_checkpoint={start}", "--num_warmup_steps=64", "--dry_run"]
    with pytest.raises(UserError, match="=64 is more than the 32 steps of --num_train_epochs=3,"):
        squad_task.run(settings_of(start, tmp_path / "out", *given))


@pytest.mark.parametrize("wrong", ["vocabulary", "heads"])
def test_another_model_in_the_output_directory_is_left_alone(start, others, tmp_path, wrong):
    output_dir = write_model(tmp_path / "out")
    before = content_of(output_dir)
    flags, words = WRONG[wrong]
    with pytest.raises(UserError, match="cannot resume from") as error:
        squad_task.run(settings_of(start, output_dir, flags.format(others=others)))
    assert words.format(start=output_dir) in str(error.value)
    assert content_of(output_dir) == before


def test_only_the_first_questions_are_answered_and_scored(start, tmp_path, capsys):
    write_squad(tmp_path / "dev.json", 3, seed=2)
    asked = ["--do_train=false", "--do_predict", f"--predict_file={tmp_path / 'dev.json'}"]
    given = [f"--init_checkpoint={start}", *asked, "--max_predict_questions=4"]
    results = squad_task.run(settings_of(start, tmp_path / "out", *given))
    first = [example.question_id for example in read(tmp_path / "dev.json").examples[:4]]
    answers = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert list(answers) == first
    assert (results["total"], results["questions_in_file"]) == (4, 9)
    part = "dev.json (the first 4 of 9 questions)"
    assert (
        f"{part} are answered; predictions and scores cover only these" in capsys.readouterr().out
    )
    assert part in (tmp_path / "out" / "report.html").read_text()


def test_a_run_says_that_it_scores_by_characters(start, tmp_path, capsys):
    asked = ["--do_predict", f"--predict_file={write_squad(tmp_path / 'dev.json', 1, seed=2)}"]
    given = [f"--init_checkpoint={start}", "--do_train=false", *asked]
    said = "dev.json: answers are scored by characters, as MLQA scores Chinese; --score_by=words is"
    squad_task.run(settings_of(start, tmp_path / "out", *given, "--dry_run"))
    assert said not in capsys.readouterr().out
    squad_task.run(
        settings_of(start, tmp_path / "out", *given, "--dry_run", "--score_by=characters")
    )
    assert said in capsys.readouterr().out


def test_a_file_that_cannot_be_scored_is_refused_before_the_training(start, tmp_path):
    content = json.loads(write_squad(tmp_path / "dev.json", 3, seed=2).read_text())
    questions = [q for p in content["data"][0]["paragraphs"] for q in p["qas"]]
    questions[4].pop("answers")
    (tmp_path / "dev.json").write_text(json.dumps(content))
    given = [f"--init_checkpoint={start}", "--do_predict", f"--predict_file={tmp_path}/dev.json"]
    with pytest.raises(UserError, match=f"no answer to question '{questions[4]['id']}', so that"):
        squad_task.run(settings_of(start, tmp_path / "out", *given))
    assert not content_of(tmp_path / "out")


def test_more_answers_than_positions_are_listed_where_there_are_as_many(start, tmp_path):
    write_squad(tmp_path / "dev.json", 1, seed=2)
    asked = ["--do_train=false", "--do_predict", f"--predict_file={tmp_path / 'dev.json'}"]
    given = [f"--init_checkpoint={start}", *asked, "--n_best_size=1000000"]
    squad_task.run(settings_of(start, tmp_path / "out", *given))
    listed = json.loads((tmp_path / "out" / "nbest_predictions.json").read_text())
    assert all(len(answers) > CONFIG.max_position_embeddings for answers in listed.values())


def test_nvidias_flag_counts_batches(start, tmp_path):
    """@NVIDIA/DeepLearningExamples, run_squad.py: num_eval_iterations * predict_batch_size."""
    settings = settings_of(start, tmp_path, "--num_eval_iterations=3", "--predict_batch_size=2")
    assert settings.max_predict_questions == 6


def test_the_whole_file_is_not_a_part_of_it(start):
    squad = read(start.parent / "train.json")
    assert squad.first(9) is squad
    assert squad.first(8).first_of == 9


def read(path):
    return read_squad(path, flag="predict_file", version_2_with_negative=False, needs_answers=False)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--max_predict_questions=0"], "--max_predict_questions=0 must be at least 1"),
        (["--num_eval_iterations=0"], "--num_eval_iterations=0 must be at least 1"),
        (
            ["--max_predict_questions=3", "--num_eval_iterations=2"],
            "--max_predict_questions and --num_eval_iterations set the same number; give one",
        ),
    ],
)
def test_invalid_limits(start, tmp_path, flags, said):
    with pytest.raises(UserError, match=said):
        settings_of(start, tmp_path / "out", *flags)


def test_a_dry_run_without_any_weights(start, tmp_path, capsys):
    """There is neither a model to start from nor an output directory."""
    given = [f"--vocab_file={start}/vocab.txt", f"--bert_config_file={start}/bert_config.json"]
    squad_task.run(settings_of(start, tmp_path / "out", *given, "--dry_run"))
    assert not (tmp_path / "out").exists()
    assert "memory, estimated" in capsys.readouterr().out


def test_default_lengths_follow_the_network(start, tmp_path, capsys):
    """Its 64 positions have no room for a question of 64 tokens, or a stride of 128."""
    settings = settings_of(start, tmp_path / "out", f"--init_checkpoint={start}", "--dry_run")
    names = frozenset({"max_seq_length", "doc_stride", "max_query_length"})
    flags = {"max_seq_length": 384, "doc_stride": 128, "max_query_length": 64}
    run = with_values(settings.run, defaulted=names, flags=flags)
    positions = CONFIG.max_position_embeddings
    for changes, stride in (({}, positions // 3), ({"doc_stride": 7}, 7)):
        asked = with_values(run, defaulted=names - changes.keys())
        lengths = with_values(settings, run=asked, **{**flags, **changes})
        with begin(asked, settings.runtime) as begun:
            opened = open_run(squad_task.QuestionAnswering.open, lengths, begun)
        used = opened.task.settings
        windows = used.windows
        assert (windows.max_seq_length, windows.doc_stride) == (positions, stride)
        # The report shows the lengths that are used.
        assert used.max_seq_length == positions
        assert used.doc_stride == stride
        assert windows.max_query_length == positions // 4
        assert begun.flags["max_seq_length"] == positions
    assert "instead of the default 384" in capsys.readouterr().out
