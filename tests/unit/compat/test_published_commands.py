"""Commands that google-research/bert and NVIDIA's scripts publish are accepted unchanged.

Their shell variables have values of a small example; a bucket's name is a directory's.
"""

import re
import shlex
from types import SimpleNamespace

import pytest
from absl import flags as absl_flags

from bert_tf.cli.flags import parse_flags
from bert_tf.cli.settings_flags import from_flags
from bert_tf.tasks.classification.flags import (
    classification_settings,
    define_classification_flags,
)
from bert_tf.tasks.pretraining.flags import define_pretraining_flags, pretraining_settings
from bert_tf.tasks.question_answering.settings import define_squad_flags, squad_settings
from bert_tf.tasks.tagging.flags import define_tagging_flags, tagging_settings
from bert_tf.text.tokenizer_files import TokenizerFiles
from data_prep.stages import create_pretraining_data
from tests.helpers.programs import ROOT
from tests.unit.cli.test_flags import defined_by

# README.md of google-research/bert
GOOGLE_RECORDS = """python create_pretraining_data.py --input_file=$DIR/sample_text.txt
  --output_file=$DIR/tf_examples.tfrecord --vocab_file=$BERT/vocab.txt --do_lower_case=True
  --max_seq_length=128 --max_predictions_per_seq=20 --masked_lm_prob=0.15 --random_seed=12345
  --dupe_factor=5"""
GOOGLE_PRETRAINING = """python run_pretraining.py --input_file=$DIR/tf_examples.tfrecord
  --output_dir=$DIR/pretraining_output --do_train=True --do_eval=True
  --bert_config_file=$BERT/bert_config.json --init_checkpoint=$BERT/bert_model.ckpt
  --train_batch_size=32 --max_seq_length=128 --max_predictions_per_seq=20 --num_train_steps=20
  --num_warmup_steps=10 --learning_rate=2e-5"""
GOOGLE_SQUAD = """python run_squad.py --vocab_file=$BERT/vocab.txt
  --bert_config_file=$BERT/bert_config.json --init_checkpoint=$BERT/bert_model.ckpt
  --do_train=True --train_file=$SQUAD/train.json --do_predict=True
  --predict_file=$SQUAD/dev.json --train_batch_size=24 --learning_rate=3e-5
  --num_train_epochs=2.0 --max_seq_length=384 --doc_stride=128 --output_dir=$DIR/squad_large/"""
GOOGLE_TPU = GOOGLE_SQUAD + " --use_tpu=True --tpu_name=$TPU_NAME"
GOOGLE_SQUAD_2 = GOOGLE_TPU + " --version_2_with_negative=True"
GOOGLE_THRESHOLD = (
    GOOGLE_SQUAD_2.replace("--do_train=True", "--do_train=False")
    + " --null_score_diff_threshold=$THRESH"
)
GOOGLE_CASED = GOOGLE_SQUAD + " --do_lower_case=False"

GOOGLE_MRPC = """python run_classifier.py --task_name=MRPC --do_train=true --do_eval=true
  --data_dir=$GLUE_DIR/MRPC --vocab_file=$BERT/vocab.txt --bert_config_file=$BERT/bert_config.json
  --init_checkpoint=$BERT/bert_model.ckpt --max_seq_length=128 --train_batch_size=32
  --learning_rate=2e-5 --num_train_epochs=3.0 --output_dir=$DIR/mrpc_output/"""
GOOGLE_MRPC_PREDICTION = """python run_classifier.py --task_name=MRPC --do_predict=true
  --data_dir=$GLUE_DIR/MRPC --vocab_file=$BERT/vocab.txt --bert_config_file=$BERT/bert_config.json
  --init_checkpoint=$TRAINED_CLASSIFIER --max_seq_length=128 --output_dir=$DIR/mrpc_output/"""

# scripts/ and data/bertPrep.py of NVIDIA/DeepLearningExamples, TensorFlow/LanguageModeling/BERT
NVIDIA_RECORDS = """python /workspace/bert/utils/create_pretraining_data.py
  --input_file=$DIR/sample_text.txt --output_file=$DIR/training_0.tfrecord
  --vocab_file=$BERT/vocab.txt --do_lower_case --max_seq_length=128 --max_predictions_per_seq=20
  --masked_lm_prob=0.15 --random_seed=12345 --dupe_factor=5"""
NVIDIA_PHASE_1 = """mpiexec --allow-run-as-root -np 8 --bind-to socket python
  /workspace/bert/run_pretraining.py --input_files_dir=$DIR/training --eval_files_dir=$DIR/test
  --output_dir=$DIR/phase_1 --bert_config_file=$BERT/bert_config.json --do_train=True
  --do_eval=True --train_batch_size=64 --eval_batch_size=8 --max_seq_length=128
  --max_predictions_per_seq=20 --num_train_steps=7038 --num_accumulation_steps=128
  --num_warmup_steps=2000 --save_checkpoints_steps=100 --learning_rate=7.5e-4
  --horovod --amp --use_xla --allreduce_post_accumulation=True"""
NVIDIA_PHASE_2 = """python /workspace/bert/run_pretraining.py --input_files_dir=$DIR/training
  --init_checkpoint=$DIR/phase_1/model.ckpt-7038 --eval_files_dir=$DIR/test
  --output_dir=$DIR/phase_2 --bert_config_file=$BERT/bert_config.json --do_train=True
  --do_eval=True --train_batch_size=8 --eval_batch_size=8 --max_seq_length=512
  --max_predictions_per_seq=80 --num_train_steps=1564 --num_accumulation_steps=512
  --num_warmup_steps=200 --save_checkpoints_steps=100 --learning_rate=5e-4
  --horovod --noamp --manual_fp16 --nouse_xla --allreduce_post_accumulation=True"""
NVIDIA_ADAM = """python3 /workspace/bert/run_pretraining.py --input_files_dir=$DIR/training
  --eval_files_dir=$DIR/test --output_dir=$DIR/adam --bert_config_file=$BERT/bert_config.json
  --do_train=True --do_eval=True --train_batch_size=16 --eval_batch_size=8 --max_seq_length=512
  --max_predictions_per_seq=80 --num_train_steps=1144000 --num_warmup_steps=10000
  --num_accumulation_steps=1 --save_checkpoints_steps=5000 --learning_rate=1e-4
  --optimizer_type=adam --horovod --noamp --use_xla --allreduce_post_accumulation=True"""
NVIDIA_SQUAD = """mpirun -np 8 -H localhost:8 --allow-run-as-root -bind-to none python run_squad.py
  --vocab_file=$BERT/vocab.txt --bert_config_file=$BERT/bert_config.json
  --init_checkpoint=$BERT/model.ckpt --do_train=True --train_file=$SQUAD/train.json
  --do_predict=True --predict_file=$SQUAD/dev.json --eval_script=$SQUAD/evaluate-v1.1.py
  --train_batch_size=8 --learning_rate=5e-6 --num_train_epochs=2.0 --max_seq_length=384
  --doc_stride=128 --save_checkpoints_steps 1000 --output_dir=$DIR/squad --horovod "--amp"
  --use_xla --version_2_with_negative=False"""
# The scripts of 2019, in which an empty string means float32.
NVIDIA_SQUAD_FP16 = NVIDIA_SQUAD.replace('"--amp"', '"--use_fp16"')
NVIDIA_SQUAD_FP32 = NVIDIA_SQUAD.replace('"--amp"', '""')
NVIDIA_INFERENCE = """python run_squad.py --vocab_file=$BERT/vocab.txt
  --bert_config_file=$BERT/bert_config.json --init_checkpoint=$BERT/model.ckpt --do_predict=True
  --predict_file=$SQUAD/dev.json --eval_script=$SQUAD/evaluate-v1.1.py --predict_batch_size=8
  --max_seq_length=384 --doc_stride=128 --output_dir=$DIR/squad "--noamp" --use_xla
  --version_2_with_negative=False --num_eval_iterations=1024"""
NVIDIA_TRITON = (
    NVIDIA_INFERENCE
    + """ --export_triton --use_trt=True --triton_model_name=bert
  --triton_model_version=1 --triton_dyn_batching_delay=0 --notriton_model_overwrite
  --dllog_path=$DIR/bert_dllog.json --horovod"""
)

# biobert/scripts/ner_bc5cdr-chem.sh
NVIDIA_NER = """python /workspace/bert/run_ner.py --do_prepare=true --do_train=true --do_eval=true
  --do_predict=true --task_name=bc5cdr --vocab_file=$BERT/vocab.txt
  --bert_config_file=$BERT/bert_config.json --init_checkpoint=$DIR/biobert_uncased_base/model.ckpt
  --num_train_epochs=10.0 --data_dir=$DIR/chem --output_dir=$DIR/ner --learning_rate=3.125e-6
  --train_batch_size=8 --eval_batch_size=8 --predict_batch_size=8 --max_seq_length=128 --horovod
  --amp --use_xla --do_lower_case=True"""

PRETRAINING = {
    "google": GOOGLE_PRETRAINING,
    "phase 1": NVIDIA_PHASE_1,
    "phase 2": NVIDIA_PHASE_2,
    "adam": NVIDIA_ADAM,
}
SQUAD = {
    "google": GOOGLE_SQUAD,
    "google, TPU": GOOGLE_TPU,
    "google, 2.0": GOOGLE_SQUAD_2,
    "google, threshold": GOOGLE_THRESHOLD,
    "google, cased": GOOGLE_CASED,
    "nvidia": NVIDIA_SQUAD,
    "nvidia, fp16": NVIDIA_SQUAD_FP16,
    "nvidia, fp32": NVIDIA_SQUAD_FP32,
    "nvidia, inference": NVIDIA_INFERENCE,
    "nvidia, triton": NVIDIA_TRITON,
}


def _records_settings(values):
    return from_flags(
        create_pretraining_data.Settings, values, tokenizer_files=TokenizerFiles.from_flags(values)
    )


@pytest.fixture
def settings_of(tmp_path, monkeypatch, capsys):
    """The settings that the programs here make from a command, and their messages."""
    records = ("tf_examples.tfrecord", "training/a.tfrecord", "test/a.tfrecord")
    others = ("sample_text.txt", "train.json", "dev.json", "vocab.txt", "bert_config.json")
    for name in (*records, *others):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("content")
    variables = {"TPU_NAME": "some-tpu", "THRESH": "-1.97"}
    monkeypatch.chdir(ROOT)

    def settings_of(command, *before):
        text = re.sub(r"\$(\w+)", lambda m: variables.get(m[1], str(tmp_path)), command)
        words = shlex.split(text)
        script = next(index for index, word in enumerate(words) if word.endswith(".py"))
        name = words[script].rpartition("/")[2]
        define, make = {
            "run_pretraining.py": (define_pretraining_flags, pretraining_settings),
            "run_squad.py": (define_squad_flags, squad_settings),
            "run_classifier.py": (define_classification_flags, classification_settings),
            "run_ner.py": (define_tagging_flags, tagging_settings),
        }.get(name, (None, _records_settings))
        if define:
            values = absl_flags.FlagValues()
            define(values)
        else:
            values = defined_by("data_prep.create_pretraining_data")
        absl_flags.DEFINE_string("flagfile", "", "", flag_values=values)
        monkeypatch.setattr(absl_flags, "FLAGS", values)
        assert parse_flags([name, *before, *words[script + 1 :]]) in ([name], [name, ""])
        settings = make(values)
        return SimpleNamespace(settings=settings, said=capsys.readouterr().out)

    return settings_of


@pytest.mark.parametrize("command", [GOOGLE_RECORDS, NVIDIA_RECORDS], ids=["google", "nvidia"])
def test_records(settings_of, command):
    settings = settings_of(command).settings
    assert settings.tokenizer_files.do_lower_case
    assert (settings.max_predictions_per_seq, settings.dupe_factor) == (20, 5)
    assert settings.output_file.endswith(".tfrecord")


@pytest.mark.parametrize("name", PRETRAINING)
def test_pretraining(settings_of, name):
    found = settings_of(PRETRAINING[name])
    run, optimization, runtime = (
        getattr(found.settings, part) for part in ("run", "optimization", "runtime")
    )
    assert run.do_train
    assert run.evaluation.do_eval
    assert ("NVIDIA's scripts" in found.said) == (name != "google")
    expected = {
        "google": (32, None, 20, 2e-5, "auto", False),
        "phase 1": (64, 128, 7038, 7.5e-4, "fp32", True),
        "phase 2": (8, 512, 1564, 5e-4, "fp16", False),
        "adam": (16, 1, 1_144_000, 1e-4, "fp32", False),
    }
    assert expected[name] == (
        optimization.batch.micro_batch_size,
        optimization.batch.accumulation_steps,
        optimization.steps.num_train_steps,
        optimization.schedule.learning_rate,
        runtime.numerics.precision,
        runtime.numerics.amp,
    )


@pytest.mark.parametrize("name", SQUAD)
def test_squad(settings_of, name):
    found = settings_of(SQUAD[name])
    settings = found.settings
    assert settings.run.evaluation.do_eval
    assert ("NVIDIA's scripts" in found.said) == ("nvidia" in name)
    assert ("--use_tpu has no effect" in found.said) == ("TPU" in SQUAD[name])
    assert settings.answers.version_2_with_negative == (
        "version_2_with_negative=True" in SQUAD[name]
    )
    assert settings.answers.null_score_diff_threshold == (-1.97 if "threshold" in name else 0.0)
    assert settings.tokenizer_files.do_lower_case is (False if "cased" in name else None)
    assert settings.run.do_train == (name not in NO_TRAINING)
    assert settings.runtime.numerics.amp == (name in ("nvidia", "nvidia, fp16"))
    assert (settings.runtime.library == "horovod") == ("--horovod" in SQUAD[name])


def test_classification(settings_of, tmp_path):
    (tmp_path / "MRPC").mkdir()
    settings = settings_of(GOOGLE_MRPC).settings
    run, optimization = settings.run, settings.optimization
    assert (run.do_train, run.evaluation.do_eval, settings.do_predict) == (True, True, False)
    assert (settings.task_name, settings.data_dir) == ("mrpc", tmp_path / "MRPC")
    assert (settings.max_seq_length, optimization.batch.micro_batch_size) == (128, 32)
    assert (optimization.steps.num_train_epochs, optimization.schedule.learning_rate) == (3.0, 2e-5)


def test_prediction_of_classes(settings_of, tmp_path):
    (tmp_path / "MRPC").mkdir()
    settings = settings_of(GOOGLE_MRPC_PREDICTION + " --use_tpu=False").settings
    run = settings.run
    assert (run.do_train, run.evaluation.do_eval, settings.do_predict) == (False, False, True)
    assert settings.optimization.steps.warmup_proportion == 0.1
    assert settings.predict_batch_size == 8


NO_TRAINING = ("google, threshold", "nvidia, inference", "nvidia, triton")


@pytest.mark.parametrize(
    ("command", "schedule"),
    [
        (NVIDIA_PHASE_1, ("lamb", "google", 0.5)),
        (NVIDIA_ADAM, ("adam", "polynomial", 1.0)),
        (NVIDIA_SQUAD, ("adam", "polynomial", 1.0)),
        (NVIDIA_NER, ("adam", "polynomial", 1.0)),
    ],
    ids=["phase 1", "adam", "squad", "ner"],
)
def test_they_train_as_in_nvidias_scripts(settings_of, tmp_path, command, schedule):
    (tmp_path / "chem").mkdir()
    optimization = settings_of(command).settings.optimization
    assert optimization.schedule.learning_rate_scaling == "linear"
    assert schedule == (
        optimization.optimizer,
        optimization.schedule.name,
        optimization.schedule.options["decay_power"],
    )
    # Steps are counted as given, on any number of ranks: the next script looks for the last one.
    assert optimization.steps.scale_steps_by_ranks == (
        None if command in (NVIDIA_SQUAD, NVIDIA_NER) else False
    )
    post = "--allreduce_post_accumulation=True" in command
    assert optimization.allreduce_every_micro_batch == (not post)


def test_labels_of_words(settings_of, tmp_path):
    (tmp_path / "chem").mkdir()
    found = settings_of(NVIDIA_NER)
    run, optimization = found.settings.run, found.settings.optimization
    assert (run.do_train, run.evaluation.do_eval, found.settings.do_predict) == (True, True, True)
    assert (found.settings.data_dir, found.settings.max_seq_length) == (tmp_path / "chem", 128)
    assert (optimization.batch.micro_batch_size, optimization.schedule.learning_rate) == (
        8,
        3.125e-6,
    )
    assert found.settings.runtime.numerics.amp
    for name in ("task_name", "do_prepare"):
        assert f"warning: --{name} has no effect here and is ignored." in found.said
