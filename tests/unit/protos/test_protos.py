"""The generated code says what the contract says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor
from grpc_tools import protoc  # type: ignore[import-untyped]  # it has no types

from protos.keda import externalscaler_pb2 as keda
from protos.penstock.v1 import inference_pb2 as pb

REPOSITORY = Path(__file__).parents[3]
CONTRACT = "protos/penstock/v1/inference.proto"
KEDA_CONTRACT = "protos/keda/externalscaler.proto"


@pytest.mark.parametrize(
    ("contract", "code"), [(CONTRACT, pb.DESCRIPTOR), (KEDA_CONTRACT, keda.DESCRIPTOR)], ids=["ours", "keda"]
)
def test_the_generated_code_is_that_of_the_contract(
    tmp_path: Path, contract: str, code: FileDescriptor
) -> None:
    compiled = tmp_path / "contract.bin"
    arguments = ["protoc", f"-I{REPOSITORY}", f"--descriptor_set_out={compiled}", str(REPOSITORY / contract)]
    assert protoc.main(arguments) == 0
    written = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file[0]
    generated = descriptor_pb2.FileDescriptorProto()
    code.CopyToProto(generated)
    for file in (written, generated):
        file.ClearField("source_code_info")
        _drop_json_names(file.message_type)
    assert generated == written


def test_make_protos_restores_what_stands_above_the_stubs(tmp_path: Path) -> None:
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    generated = tmp_path / Path(CONTRACT).parent
    for contract in (CONTRACT, KEDA_CONTRACT):
        (tmp_path / contract).parent.mkdir(parents=True)
        shutil.copy(REPOSITORY / contract, tmp_path / contract)
    environment = ["VENV=venv", f"BIN={Path(sys.executable).parent}"]
    subprocess.run(
        ["make", "-o", "setup", "protos", *environment],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=60,
    )
    tracked = (REPOSITORY / CONTRACT).parent
    assert {path.name for path in generated.iterdir()} <= {path.name for path in tracked.iterdir()}
    # Versions of the generator differ in what they write, but not in what has to stand above it.
    first_lines = [
        (folder / "inference_pb2.pyi").read_text().partition("\n")[0] for folder in (generated, tracked)
    ]
    assert first_lines[0] == first_lines[1]


def _drop_json_names(messages: Iterable[descriptor_pb2.DescriptorProto]) -> None:
    """Only the compiler fills them in; they follow from the names."""
    for message in messages:
        for field in message.field:
            field.ClearField("json_name")
        _drop_json_names(message.nested_type)
