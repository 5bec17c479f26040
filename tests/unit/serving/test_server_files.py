"""Servers' configuration files parse as the messages that the servers publish.

The messages are tensorflow_serving/config/model_server_config.proto and, of
triton-inference-server/common, protobuf/model_config.proto: the fields that are used, with their
numbers and types.
"""

from pathlib import Path

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from bert_tf.serving.export import export_saved_model
from bert_tf.serving.server_files import (
    TRITON_SAVED_MODEL,
    Written,
    write_serving_config,
    write_triton_config,
)
from bert_tf.serving.settings import ExportSettings
from bert_tf.serving.trained import open_trained
from tests.helpers.small_task_models import WRITERS

FIELD = descriptor_pb2.FieldDescriptorProto
STRING, INT32, INT64, BOOL = FIELD.TYPE_STRING, FIELD.TYPE_INT32, FIELD.TYPE_INT64, FIELD.TYPE_BOOL

SERVING = {
    "ModelConfig": {"name": (1, STRING), "base_path": (2, STRING), "model_platform": (4, STRING)},
    "ModelConfigList": {"config": (1, ["ModelConfig"])},
    "ModelServerConfig": {"model_config_list": (1, "ModelConfigList")},
}
DATA_TYPES = {"TYPE_BOOL": 1, "TYPE_INT32": 8, "TYPE_INT64": 9, "TYPE_FP32": 11, "TYPE_STRING": 13}
TRITON = {
    "ModelTensorReshape": {"shape": (1, [INT64])},
    "ModelInput": {
        "name": (1, STRING),
        "data_type": (2, "DataType"),
        "dims": (4, [INT64]),
        "reshape": (5, "ModelTensorReshape"),
    },
    "ModelOutput": {
        "name": (1, STRING),
        "data_type": (2, "DataType"),
        "dims": (3, [INT64]),
        "reshape": (5, "ModelTensorReshape"),
    },
    "ModelDynamicBatching": {"preserve_ordering": (3, BOOL)},
    "ModelConfig": {
        "name": (1, STRING),
        "platform": (2, STRING),
        "backend": (17, STRING),
        "max_batch_size": (4, INT32),
        "input": (5, ["ModelInput"]),
        "output": (6, ["ModelOutput"]),
        "dynamic_batching": (11, "ModelDynamicBatching"),
    },
}


def message_of(package, messages, name):
    """An empty message of a class that is described by ``messages``; lists are repeated fields."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package)
    file.syntax = "proto3"
    types = file.enum_type.add(name="DataType")
    for type_name, number in {"TYPE_INVALID": 0, **DATA_TYPES}.items():
        types.value.add(name=type_name, number=number)
    for message, fields in messages.items():
        described = file.message_type.add(name=message)
        for field, (number, kind) in fields.items():
            label = FIELD.LABEL_REPEATED if isinstance(kind, list) else FIELD.LABEL_OPTIONAL
            [kind] = kind if isinstance(kind, list) else [kind]
            added = described.field.add(name=field, number=number, label=label)
            if isinstance(kind, str):
                added.type = FIELD.TYPE_ENUM if kind == "DataType" else FIELD.TYPE_MESSAGE
                added.type_name = f".{package}.{kind}"
            else:
                added.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))()


def parsed_triton(path):
    return text_format.Parse(path.read_text(), message_of("triton", TRITON, "ModelConfig"))


def export(tmp_path, task, inside=TRITON_SAVED_MODEL):
    found = open_trained(WRITERS[task](tmp_path / "model"))
    return export_saved_model(found, ExportSettings(), tmp_path / "served", inside=inside)


def test_tensorflow_serving(tmp_path):
    export_dir = tmp_path / 'a "model" é'
    export_dir.mkdir()
    path = export_dir / "models.config"
    assert write_serving_config(export_dir) == f"{path} is for TensorFlow Serving"
    empty = message_of("serving", SERVING, "ModelServerConfig")
    [config] = text_format.Parse(path.read_text(), empty).model_config_list.config
    assert (config.name, config.base_path) == (export_dir.name, str(export_dir))
    assert config.model_platform == "tensorflow"


def test_a_model_in_the_working_directory_has_that_directorys_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_serving_config(Path())
    empty = message_of("serving", SERVING, "ModelServerConfig")
    text = Path("models.config").read_text()
    [config] = text_format.Parse(text, empty).model_config_list.config
    assert (config.name, config.base_path) == (tmp_path.name, str(tmp_path))
    write_triton_config(Written(Path("1"), [], []))
    assert parsed_triton(Path("config.pbtxt")).name == tmp_path.name


def test_a_file_that_is_there_is_kept(tmp_path):
    write_serving_config(tmp_path)
    assert write_serving_config(tmp_path).endswith("models.config was there and is kept")
    (tmp_path / "models.config").write_text("# mine")
    assert "is kept, but differs from what would be" in write_serving_config(tmp_path)
    assert (tmp_path / "models.config").read_text() == "# mine"


@pytest.mark.parametrize("task", WRITERS)
def test_triton_with_a_saved_model(tmp_path, task):
    written = export(tmp_path, task)
    version = written.path
    assert (version / "model.savedmodel/saved_model.pb").is_file()
    assert (version / "model.savedmodel/assets.extra/vocab.txt").is_file()
    assert write_triton_config(written) == f"{version.parent / 'config.pbtxt'} is for Triton"
    config = parsed_triton(version.parent / "config.pbtxt")
    assert (config.name, config.platform) == ("served", "tensorflow_savedmodel")
    assert config.backend == "tensorflow"
    assert config.max_batch_size > 1
    assert config.HasField("dynamic_batching")
    inputs = {one.name: (one.data_type, list(one.dims)) for one in config.input}
    names = ("input_ids", "input_mask", "segment_ids")
    assert inputs == {name: (DATA_TYPES["TYPE_INT32"], [-1]) for name in names}
    outputs = {one.name: one for one in config.output}
    if task == "classification":
        assert outputs["classes"].data_type == DATA_TYPES["TYPE_STRING"]
        assert list(outputs["probabilities"].dims) == [3]
        # One value per example: Triton's form of no further dimension.
        assert list(outputs["label"].dims) == [1]
        assert outputs["label"].HasField("reshape")
        assert not outputs["label"].reshape.shape
    if task == "masked_words":
        assert list(outputs["words"].dims) == [-1, 5]
        assert not outputs["words"].HasField("reshape")


def test_triton_with_onnx(tmp_path):
    outputs = [("label_id", "int64", ()), ("logits", "float32", (3,))]
    (tmp_path / "served").mkdir()
    version = tmp_path / "served" / "1"
    write_triton_config(Written(version, [("input_ids", "int32", (-1,))], outputs, 1e-6))
    config = parsed_triton(version.parent / "config.pbtxt")
    assert (config.platform, config.backend) == ("onnxruntime_onnx", "onnxruntime")
    assert [list(one.dims) for one in (*config.input, *config.output)] == [[-1], [1], [3]]
    found = [one.data_type for one in config.output]
    assert found == [DATA_TYPES["TYPE_INT64"], DATA_TYPES["TYPE_FP32"]]
    assert np.prod(config.output[0].reshape.shape) == 1
