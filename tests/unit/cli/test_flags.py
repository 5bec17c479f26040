"""Numbers in flags mean what they say or are refused, in every command."""

import importlib

import pytest
from absl import app, flags

from bert_tf.cli.flags import NO_PATHS, Number, as_typed, parse_flags, run_command
from bert_tf.cli.settings_flags import Definer
from bert_tf.tasks.pretraining import flags as pretraining_flags
from bert_tf.tasks.question_answering import settings as squad_flags
from bert_tf.util.errors import UserError
from bert_tf.util.options import Option
from tests.helpers.programs import ROOT

# Where infinity says something: no limit, never, always.
INFINITE = {"clip_norm", "null_score_diff_threshold", "na_prob_thresh"}
COMMANDS = [
    "bert_tf.commands.convert",
    "bert_tf.commands.average_checkpoints",
    "bert_tf.commands.extend_vocabulary",
    "bert_tf.commands.from_deepspeed",
    "bert_tf.commands.doctor",
    "bert_tf.commands.export",
    "bert_tf.commands.ask",
    "bert_tf.commands.fill_mask",
    "bert_tf.commands.squad_metrics",
    "data_prep.create_pretraining_data",
    "tools.demo.corpus",
    "tools.demo.questions",
    "data_prep.inspect",
    "data_prep.pipeline",
    "data_prep.sentences",
    "data_prep.shards",
    "data_prep.clean",
    "data_prep.download",
    "data_prep.extract",
    "data_prep.filter_language",
    "data_prep.convert_records",
    "data_prep.vocabulary",
]


def flags_of_scripts():
    for define in (
        pretraining_flags.define_pretraining_flags,
        squad_flags.define_squad_flags,
    ):
        values = flags.FlagValues()
        define(values)
        yield from (values[name] for name in values)


def flags_of_command(module):
    """What a command adds to the flags of the program, which are as before afterwards."""
    before = set(flags.FLAGS)
    importlib.import_module(module).define_flags()
    added = set(flags.FLAGS) - before
    found = [flags.FLAGS[name] for name in added]
    for name in added:
        delattr(flags.FLAGS, name)
    return found


def refused(flag, text):
    try:
        flag.parser.parse(text)
    except ValueError:
        return True
    return False


def assert_numbers_are_meant(found):
    numbers = [flag for flag in found if flag.parser.flag_type() in ("float", "int")]
    for flag in numbers:
        assert refused(flag, "nan"), flag.name
        for text in ("inf", "-inf", "1e39", "-Infinity"):
            assert refused(flag, text) == (flag.name not in INFINITE), (flag.name, text)
    return {flag.name for flag in numbers}


def test_every_number_of_the_training_scripts():
    names = assert_numbers_are_meant(flags_of_scripts())
    some = "learning_rate weight_decay clip_norm num_train_epochs warmup_proportion masked_lm_prob"
    assert set(some.split()) | {"rank_timeout", "init_loss_scale", "num_train_steps"} <= names


@pytest.mark.parametrize("module", COMMANDS)
def test_every_number_of_a_command(module):
    assert_numbers_are_meant(flags_of_command(module))


def test_no_command_is_forgotten():
    rooms = ("bert_tf", "data_prep", "tools/demo")
    sources = [path for room in rooms for path in ROOT.glob(f"{room}/**/*.py")]
    found = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sources
        if "define_flags" in (text := path.read_text(encoding="utf-8")) and "if __name__" in text
    }
    assert found == set(COMMANDS)


def test_numbers():
    assert Number().parse("-2.5e-3") == -0.0025
    assert Number().parse("3.4028234e38") == 3.4028234e38
    assert Number(infinite=True).parse("inf") == float("inf")
    with pytest.raises(ValueError, match="could not convert"):
        Number().parse("much")


@pytest.fixture
def program_flags(monkeypatch):
    """Some flags, in the place of the program's."""
    values = flags.FlagValues()
    flags.DEFINE(Number(), "learning_rate", 0.1, "The rate.", flag_values=values)
    flags.DEFINE_integer("steps", 5, "Steps.", flag_values=values)
    flags.DEFINE_bool("do_lower_case", True, "Lower-case.", flag_values=values)
    flags.DEFINE_string("input_file", None, "Files.", flag_values=values)
    flags.DEFINE_string("output_dir", None, "Results.", flag_values=values)
    flags.DEFINE_string("flagfile", "", "As absl's.", flag_values=values)
    Definer(values).option(Option(False, "use_xla", "Compile.", takes_auto=True))
    monkeypatch.setattr(flags, "FLAGS", values)
    return values


def refusal(*given, **options):
    with pytest.raises(UserError) as error:
        parse_flags(["program", *given], **options)
    return str(error.value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("--learning_rate=nan", "--learning_rate=nan: must be a number; --help lists"),
        ("--learning_rate=inf", "--learning_rate=inf: must be a finite number; --help"),
        ("--learning_rate=fast", "--learning_rate=fast: must be a number; --help"),
        ("--steps=1e5", "--steps=1e5: must be a whole number; --help"),
        ("--do_lower_case=maybe", "--do_lower_case=maybe: must be true or false; --help"),
        ("--use_xla=maybe", "--use_xla=maybe: must be true, false or auto; --help"),
        ("--nodo_lower_case=true", "--nodo_lower_case=true does not take an argument; --help"),
        ("--output_dir", "--output_dir needs a value; --help"),
        ("--lerning_rate=1", "--lerning_rate is not a flag of this command; did you mean --learn"),
        ("--learn_rate=1", "--learn_rate is not a flag of this command; did you mean --learning_"),
        ("--learning-rate=1", "--learning-rate is not a flag of this command; did you mean --le"),
        ("--rate=1", "--rate is not a flag of this command; did you mean --learning_rate? --help"),
        ("--nolower_case", "--nolower_case is not a flag of this command; did you mean --nodo_lo"),
        ("--zzz", "--zzz is not a flag of this command; --help lists the flags."),
        ("--flagfile=nowhere", "--flagfile: nowhere cannot be read (No such file or directory); "),
    ],
)
def test_a_wrong_flag_is_one_sentence(program_flags, given, expected):
    sentence = refusal(given)
    assert sentence.startswith(expected)
    assert "\n" not in sentence
    assert parse_flags(["program", "--learning_rate=0.5"]) == ["program"]
    assert program_flags.learning_rate == 0.5


def test_a_required_flag(program_flags):
    flags.mark_flag_as_required("input_file", flag_values=program_flags)
    assert refusal() == "--input_file is required; --help lists the flags."


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--do_lower_case", "False"], "without an equals sign: write --do_lower_case=false."),
        (["--use_xla", "auto"], "without an equals sign: write --use_xla=auto."),
        (["--steps", "3", "--do_lower_case", "0", "--steps=4"], "write --do_lower_case=0."),
        (["--do_lower_case", "quickly"], "quickly is neither a flag nor a flag's value"),
        (["--do_lower_case=true", "false"], "false is neither a flag nor a flag's value"),
        (["learning_rate=0.5"], "write --learning_rate=0.5."),
        (["\N{EN DASH}learning_rate=0.5"], "write --learning_rate=0.5."),
        (["--input_file", "a.txt", "b.txt"], "unexpected word b.txt after --input_file"),
        (["--input_file=a.txt", "b.txt"], "unexpected word b.txt after --input_file"),
        (["--steps=3", " "], "a backslash that continues a line must be its last"),
        (["--steps=3", "--", "rest"], "rest is neither a flag nor a flag's value"),
    ],
)
def test_a_word_that_is_no_flag_is_refused(program_flags, given, expected):
    assert expected in refusal(*given)


def test_words_where_they_are_meant(program_flags):
    given = ["program", "--steps=3", "--", "python", "run.py", "--help", "True"]
    assert parse_flags(given, takes_words=True) == ["program", *given[3:]]
    # Quotes around a shell variable that is empty, as NVIDIA's scripts have them.
    assert parse_flags(["program", "--do_lower_case", "", "--steps=7"])[:1] == ["program"]
    assert program_flags.steps == 7


def test_a_word_in_a_flag_file(program_flags, tmp_path):
    path = tmp_path / "some.flags"
    path.write_bytes(b"--steps=3\n\xff")
    assert refusal(f"--flagfile={path}").startswith("a --flagfile is not UTF-8 text (byte 10); ")
    path.write_text("--steps=3\n", encoding="utf-16-le")
    assert refusal(f"--flagfile={path}").startswith("a --flagfile contains NUL characters, as UTF-")
    path.write_text("--do_lower_case False\n")
    assert refusal(f"--flagfile={path}").endswith("write --do_lower_case=False.")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            "--output_dir=gs://bucket/squad",
            "in Google Cloud Storage, but only files on local and shared disks",
        ),
        ("--output_dir=hdfs://host/x", "give a local path, and copy the output afterwards"),
        ("--input_file=a.txt, s3://bucket/b.txt", "--input_file=s3://bucket/b.txt is in Amazon S3"),
        ("--input_file=abfss://x@y/z", "is a abfss:// address"),
        ("--input_file=file:///data/a.txt", "give only the path: /data/a.txt."),
        ("--flagfile=gs://bucket/some.flags", "--flagfile=gs://bucket/some.flags is in Google"),
    ],
)
def test_a_path_that_is_on_no_disk(program_flags, given, expected):
    assert expected in refusal(given)


def defined_by(module):
    """The flags of a command, alone."""
    found = flags.FlagValues()
    for flag in flags_of_command(module):
        found[flag.name] = flag
    return found


def flags_of_all_commands():
    for define in (pretraining_flags.define_pretraining_flags, squad_flags.define_squad_flags):
        values = flags.FlagValues()
        define(values)
        yield values
    for module in COMMANDS:
        yield defined_by(module)


def test_a_path_in_the_home_directory(monkeypatch):
    values = flags.FlagValues()
    pretraining_flags.define_pretraining_flags(values)
    monkeypatch.setattr(flags, "FLAGS", values)
    monkeypatch.setenv("HOME", "/home/me")
    parse_flags([
        "program", "--output_dir=~/out", "--input_file=~/a*, ~/b,'~/c',x~/d,~", "--vocab_file=~x",
        "--before_training=ls ~/a", "--eval_file=a/~/b",
    ])  # fmt: skip
    assert values.output_dir == "/home/me/out"
    assert values.input_file == "/home/me/a*, /home/me/b,'/home/me/c',x~/d,/home/me"
    assert values.vocab_file == "~x"
    assert values.before_training == "ls ~/a"
    assert values.eval_file == "a/~/b"


def test_every_path_flag_of_every_command_is_looked_at(monkeypatch):
    no_paths = set()
    for values in list(flags_of_all_commands()):
        monkeypatch.setattr(flags, "FLAGS", values)
        for name in [n for n in values if values[n].flag_type() in ("string", "multi string")]:
            if getattr(values[name].parser, "enum_values", None):
                continue
            values.unparse_flags()
            for other in values:
                values[other].present = 0
                values[other].validators.clear()
            values[name].value = values[name].default
            if name in NO_PATHS:
                parse_flags(["program", f"--{name}=gs://bucket/x"])
                no_paths.add(name)
            else:
                assert "Google Cloud Storage" in refusal(f"--{name}=gs://bucket/x")
    assert no_paths == NO_PATHS


def test_help_lists_every_flag_of_every_command_under_a_heading(monkeypatch, capsys):
    for values in list(flags_of_all_commands()):
        monkeypatch.setattr(flags, "FLAGS", values)
        with pytest.raises(SystemExit) as end:
            parse_flags(["program", "--help"])
        assert end.value.code == 0
        text = capsys.readouterr().out
        headings = {line for line in text.splitlines() if line.endswith(":") and line[0] != " "}
        assert "Flags:" not in headings
        for name in values:
            assert f"  --{name}: " in text or f"  --[no]{name}: " in text
        assert max(map(len, text.splitlines())) <= 100


def test_help_is_for_this_command_alone(program_flags, capsys):
    for word in ("--help", "-h", "--helpfull"):
        with pytest.raises(SystemExit):
            parse_flags(["program", "--steps", "3", word])
    assert "The rate. (default: 0.1)" in capsys.readouterr().out
    parse_flags(["program", "--input_file", "--help"])
    parse_flags(["program", "--", "echo", "--help"], takes_words=True)
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("--steps=5, but", "--steps=5 (the default), but"),
        ("lower --learning_rate=0.1.", "lower --learning_rate=0.1 (the default)."),
        ("--do_lower_case=true; drop it", "--do_lower_case=true (the default); drop it"),
        # Advice, a flag that was given, and one of another program.
        ("give --steps=50.", "give --steps=50."),
        ("--output_dir=a is wrong.", "--output_dir=a is wrong."),
        ("--np=5 is wrong.", "--np=5 is wrong."),
    ],
)
def test_a_value_that_nobody_typed_is_marked(program_flags, sentence, expected):
    parse_flags(["program", "--output_dir=a"])
    assert as_typed(sentence, program_flags) == expected
    parse_flags(["program", "--steps=5", "--learning_rate=0.1", "--do_lower_case"])
    assert as_typed(sentence, program_flags) == sentence


def test_an_error_of_a_command_marks_them(program_flags, monkeypatch, capsys):
    def main(_):
        raise UserError("--steps=5 is more than --learning_rate=0.1; lower it.")

    def without_its_own_flags(run, flags_parser):
        run(flags_parser(["program", "--learning_rate=0.1"]))

    monkeypatch.setattr(app, "run", without_its_own_flags)
    with pytest.raises(SystemExit) as ended:
        run_command(main)
    assert ended.value.code == 2
    expected = "error: --steps=5 (the default) is more than --learning_rate=0.1; lower it.\n"
    assert capsys.readouterr().err == expected
