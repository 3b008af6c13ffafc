"""The protocol's classes: compiled from the file beside them, and the same as those of RocketMQ's own clients."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from rmq_spark.proxy import wire
from rmq_spark.proxy.status import Code

PROTOCOL = Path(wire.__file__).parent / "protocol"

# Apache's classes and ours have the same names: they are looked at in another process.
APACHES = """
import json
from google.protobuf import descriptor_pb2
from rocketmq.grpc_protocol import definition_pb2, service_pb2
made = []
for module in (definition_pb2, service_pb2):
    file = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    made.append(file.SerializeToString().hex())
print(json.dumps(made))
"""


def _shape(files: list[descriptor_pb2.FileDescriptorProto]) -> dict[str, object]:
    """Names and numbers of everything."""
    shape: dict[str, object] = {}

    def fields(message: descriptor_pb2.DescriptorProto, prefix: str) -> None:
        for field in message.field:
            shape[f"{prefix}{message.name}.{field.name}"] = (field.number, field.type, field.label, field.type_name)
        for nested in message.nested_type:
            fields(nested, f"{prefix}{message.name}.")

    for file in files:
        for message in file.message_type:
            fields(message, "")
        for enum in file.enum_type:
            shape[enum.name] = [(value.name, value.number) for value in enum.value]
        for service in file.service:
            shape[service.name] = [
                (each.name, each.input_type, each.output_type, each.client_streaming, each.server_streaming)
                for each in service.method
            ]
    return shape


def _ours() -> list[descriptor_pb2.FileDescriptorProto]:
    compiled = descriptor_pb2.FileDescriptorSet.FromString((PROTOCOL / "messaging.binpb").read_bytes())
    return [file for file in compiled.file if file.package == wire.PACKAGE]


def test_the_compiled_protocol_is_that_of_the_file_beside_it(tmp_path: Path) -> None:
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", "-I", str(PROTOCOL), "--include_imports"),
            *(f"--descriptor_set_out={tmp_path / 'made'}", "messaging.proto"),
        ],
        check=True,
    )
    made = descriptor_pb2.FileDescriptorSet.FromString((tmp_path / "made").read_bytes())
    assert _shape([file for file in made.file if file.package == wire.PACKAGE]) == _shape(_ours())


def test_names_and_numbers_are_those_of_apaches_client(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", APACHES], capture_output=True, check=True, env={"HOME": str(tmp_path)}, text=True
    )
    files = [descriptor_pb2.FileDescriptorProto.FromString(bytes.fromhex(each)) for each in json.loads(done.stdout)]
    assert _shape(files) == _shape(_ours())


@pytest.mark.parametrize(
    ("ours", "name"),
    [
        (Code, "Code"),
        (wire.WireType, "MessageType"),
        (wire.ClientType, "ClientType"),
        (wire.Encoding, "Encoding"),
        (wire.DigestType, "DigestType"),
        (wire.FilterType, "FilterType"),
        (wire.AddressScheme, "AddressScheme"),
        (wire.Permission, "Permission"),
        (wire.Resolution, "TransactionResolution"),
        (wire.OffsetPolicy, "QueryOffsetPolicy"),
    ],
)
def test_enums_have_the_numbers_of_the_protocol(ours: type[Code], name: str) -> None:
    told = {value.number: value.name for value in wire.POOL.FindEnumTypeByName(f"{wire.PACKAGE}.{name}").values}
    assert sorted(each.value for each in ours) == sorted(told)
    for each in ours:
        assert told[each.value].upper().endswith(each.name.upper())
