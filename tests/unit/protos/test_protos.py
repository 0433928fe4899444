"""The generated code says what the contract says."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_tools import protoc  # type: ignore[import-untyped]  # it has no types

from protos.penstock.v1 import inference_pb2 as pb

REPOSITORY = Path(__file__).parents[3]
CONTRACT = "protos/penstock/v1/inference.proto"


def test_the_generated_code_is_that_of_the_contract(tmp_path: Path) -> None:
    compiled = tmp_path / "contract.bin"
    arguments = ["protoc", f"-I{REPOSITORY}", f"--descriptor_set_out={compiled}", str(REPOSITORY / CONTRACT)]
    assert protoc.main(arguments) == 0
    written = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file[0]
    generated = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(generated)
    for file in (written, generated):
        file.ClearField("source_code_info")
        _drop_json_names(file.message_type)
    assert generated == written


def _drop_json_names(messages: Iterable[descriptor_pb2.DescriptorProto]) -> None:
    """Only the compiler fills them in; they follow from the names."""
    for message in messages:
        for field in message.field:
            field.ClearField("json_name")
        _drop_json_names(message.nested_type)
