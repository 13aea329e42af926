"""Schemas of Protocol Buffers: protoc compiles each once in a process, and only a wrong schema counts as wrong."""

import base64
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from levada.spark.errors import ProtocError
from levada.spark.formats.protobuf import ProtobufSchema

PYTHON = sys.executable

Stub = Callable[[str], Path]


def schema(name: str) -> str:
    """A text that no other test has compiled."""
    return f'syntax = "proto3"; import "google/protobuf/empty.proto"; message {name} {{ int32 n = 1; }}'


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    """Makes a shell script the Python that runs protoc; the file that is returned counts its runs."""

    def create(text: str) -> Path:
        script, runs = tmp_path / "python", tmp_path / "runs"
        script.write_text(f'#!/bin/sh\nPYTHON="{PYTHON}"\necho >> "{runs}"\n{text}\n')
        script.chmod(stat.S_IRWXU)
        monkeypatch.setattr(sys, "executable", str(script))
        return runs

    return create


def test_a_process_compiles_a_schema_once(python: Stub) -> None:
    runs = python('exec "$PYTHON" "$@"')
    for _ in range(3):
        assert ProtobufSchema(schema("Once")).message().full_name == "Once"
    imports = schema("Outer").replace("google/protobuf/empty.proto", "a.proto")
    for number in (1, 2, 1, 2):
        found = ProtobufSchema(imports, [("a.proto", f'syntax = "proto3"; message A{number} {{}}')])
        assert found.message().full_name == "Outer"
    for _ in range(2):
        with pytest.raises(ValueError, match=r'protoc cannot compile the schema: schema.proto:1:.*Expected ";"'):
            ProtobufSchema('syntax = "proto3"; message Wrong { int32 n = 1 }')
    assert len(runs.read_text()) == 4


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("kill -9 $$", "protoc ends with -9: no output"),
        ('exec "$PYTHON" -S -E "$@"', "No module named 'grpc_tools'.*need grpcio-tools"),
        (
            'ulimit -f 0; exec "$PYTHON" "$@"',
            "schema.proto.out: File too large",
        ),  # with a warning about the schema before it
    ],
    ids=["Killed", "NotInstalled", "NoRoom"],
)
def test_a_failure_of_protoc_is_not_one_of_the_schema(
    python: Stub, request: pytest.FixtureRequest, script: str, message: str
) -> None:
    text = schema(request.node.callspec.id)
    python(script)
    with pytest.raises(ProtocError, match=message):
        ProtobufSchema(text)
    python('exec "$PYTHON" "$@"')
    assert ProtobufSchema(text).message().fields_by_name["n"].number == 1


def test_a_folder_or_a_python_that_is_missing_is_not_a_failure_of_the_schema(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(tmp_path / "none"))
        with pytest.raises(ProtocError, match=r"protoc cannot be run: .*No such file"):
            ProtobufSchema(schema("NoPython"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(ProtocError, match=r"protoc cannot be run: .*No such file"):
        ProtobufSchema(schema("NoFolder"))


@pytest.mark.parametrize("name", ["schema.proto", "schema.proto/a.proto", "out/a.proto"])
def test_a_schema_may_import_a_file_of_any_name(name: str) -> None:
    imported = 'syntax = "proto3"; message Part { int32 n = 1; }'
    text = f'syntax = "proto3"; import "{name}"; message Whole {{ Part part = 1; }}'
    message = ProtobufSchema(text, [(name, imported)]).message()
    assert (message.full_name, message.fields[0].message_type.full_name) == ("Whole", "Part")
    with pytest.raises(ValueError, match=r"protoc cannot compile the schema: .*\"Lost\" is not defined"):
        ProtobufSchema(text.replace("Part part", "Lost part"), [(name, imported)])


def test_a_wrong_serialized_schema_is_a_wrong_schema() -> None:
    file = FileDescriptorProto(name="a.proto", syntax="proto3")
    file.message_type.add(name="A").field.add(name="b", number=1, type_name=".Missing", type=11, label=1)
    with pytest.raises(ValueError, match="the schema is not valid"):
        ProtobufSchema(base64.b64encode(file.SerializeToString()).decode())


def test_a_file_that_a_schema_imports_is_never_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    program = f"import pathlib; pathlib.Path({str(ran)!r}).touch()"
    references = [("grpc_tools/__init__.py", program), ("grpc_tools/protoc.py", program)]
    assert ProtobufSchema(schema("Imports"), references).message().full_name == "Imports"
    assert not ran.exists()
