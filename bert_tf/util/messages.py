"""Message classes of protocol buffers, apart from those of libraries with the same messages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = re.compile(r"(optional|repeated) (\w+) (\w+) = (\d+)(?: \[default = (\w+)\])?;")


def message_class(name: str, messages: Mapping[str, str], *, syntax: str) -> Any:
    """The class of one of several messages, in a descriptor pool of its own.

    ``messages`` has their fields as in a .proto file: ``repeated Piece pieces = 1;``. ``syntax`` is
    "proto2" or "proto3".
    """
    package = f"bert_tf.{name}"
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax=syntax)
    for message_name, fields in messages.items():
        message = file.message_type.add(name=message_name)
        for label, kind, field_name, number, default in _FIELD.findall(fields):
            field = message.field.add(name=field_name, number=int(number))
            field.label = descriptor_pb2.FieldDescriptorProto.Label.Value(f"LABEL_{label.upper()}")
            if kind in messages:
                field.type_name = f".{package}.{kind}"
            else:
                field.type = descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
            if default:
                field.default_value = default
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
