"""The unpickler reads what torch.save writes, and a hostile pickle runs nothing."""

from __future__ import annotations

import os
import pickle
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checkpoints.files.torch_files import PICKLED_FLOATS

from vectord.checkpoints.files.torch_file import PICKLE_LIMIT_BYTES, Storage, StoredTensor, read_tensors
from vectord.errors import ModelUnavailable

FILE = Path("pytorch_model.bin")
STORAGE = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu%stQ"
HOOKS = b"ccollections\nOrderedDict\n)R"
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"


def tensor(
    *, storage: bytes = STORAGE % b"K\x04", offset: bytes = b"K\x00", shape: bytes = b"K\x04\x85", stride: bytes = b""
) -> bytes:
    """Return the instructions that make a tensor; each piece can be replaced by a wrong one."""
    return REBUILD + b"(" + storage + offset + shape + (stride or b"K\x01\x85") + b"\x89" + HOOKS + b"tR"


def named(value: bytes, *, name: bytes = b"x") -> bytes:
    """Return the pickle of a dict with one entry."""
    return b"\x80\x02}X" + len(name).to_bytes(4, "little") + name + value + b"s."


def test_a_tensor_becomes_a_view_into_a_storage() -> None:
    """Offset, shape and strides, with the storage's key, type and length."""
    tensors = read_tensors(FILE, PICKLED_FLOATS)
    assert tensors == {"x": StoredTensor(Storage("0", "F32", 4), 0, (4,), (1,))}


def test_integers_of_every_width_are_read() -> None:
    """A storage of more than 2**31 items and an offset into it are written as long integers."""
    long = b"\x8a\x05" + (5 * 2**30).to_bytes(5, "little")
    pickled = named(
        tensor(storage=STORAGE % long, offset=long, shape=b"M\x00\x02J\x00\x00\x01\x00\x86", stride=b"K\x01K\x01\x86")
    )
    assert read_tensors(FILE, pickled)["x"] == StoredTensor(
        Storage("0", "F32", 5 * 2**30), 5 * 2**30, (512, 65_536), (1, 1)
    )


@pytest.mark.parametrize(
    ("shape", "strides", "stop"),
    [
        ((), (), 8),
        ((2, 3), (3, 1), 13),
        ((3, 2), (1, 3), 13),
        ((2, 3), (4, 1), 14),
        ((1, 3), (99, 1), 10),
        ((3, 1), (1, 99), 10),
        ((2, 2), (0, 0), 8),
        ((0, 3), (1, 1), 7),
    ],
    ids=str,
)
def test_a_view_has_an_extent(shape: tuple[int, ...], strides: tuple[int, ...], stop: int) -> None:
    """From item 7 on: `stop` is one past the last item, and strides of sizes of 1 do not count."""
    assert StoredTensor(Storage("0", "F32", 100), 7, shape, strides).stop == stop


MKDIR = "__import__('os').mkdir('touched')"


class Calls:
    """Pickles as a call of `function`."""

    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


class WithState:
    def __init__(self) -> None:
        self.state = 1

    def __setstate__(self, state: object) -> None:
        Path("touched").mkdir()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "value",
    [
        Calls(eval, MKDIR),
        Calls(os.mkdir, "touched"),
        {"x": Calls(exec, MKDIR)},
        Calls(Calls, exec, Calls(eval, MKDIR)),
        WithState(),
    ],
    ids=["eval", "mkdir", "in a dict", "nested", "setstate"],
)
def test_a_hostile_pickle_runs_nothing(
    value: object, protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own reader would make a folder for each of these. Here the error recommends the conversion."""
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(value, protocol)
    with pytest.raises(ModelUnavailable, match=r"pytorch_model\.bin: .*convert it to safetensors"):
        read_tensors(FILE, pickled)
    assert not Path("touched").exists()
    pickle.loads(pickled)
    assert Path("touched").exists()


BROKEN: Mapping[str, bytes] = {
    "empty": b"",
    "stops with nothing": b"\x80\x02.",
    "a list": pickle.dumps([], 2),
    "a dict in a dict": pickle.dumps({"state_dict": {"x": {}}}, 2),
    "a number in a dict": pickle.dumps({"epoch": 3}, 2),
    "a single tensor": b"\x80\x02" + tensor() + b".",
    "a key that is a number": pickle.dumps({3: {}}, 2),
    "a key that is a tensor": b"\x80\x02}" + tensor() + b"K\x01s.",
    "a key without a value": b"\x80\x02}(X\x01\x00\x00\x00xu.",
    "an item of no dict": b"\x80\x02)X\x01\x00\x00\x00xK\x01s.",
    "protocol 4": pickle.dumps({}, 4),
    "a global nobody knows": b"\x80\x02ctorch\nload\n.",
    "a global with a dot": b"\x80\x02ctorch\nFloatStorage.__class__\n.",
    "a global without end": b"\x80\x02c" + b"a" * 5000,
    "a global that is not ASCII": b"\x80\x02c\xff\n\xff\n.",
    "a name of its own as the value": b"\x80\x02ctorch\nFloatStorage\n.",
    "a call of a type of storage": b"\x80\x02ctorch\nFloatStorage\n)R.",
    "a call of a string": b"\x80\x02X\x01\x00\x00\x00x)R.",
    "a call with other arguments": b"\x80\x02" + REBUILD + b")R.",
    "an OrderedDict of something": b"\x80\x02ccollections\nOrderedDict\n(}tR.",
    "a parameter of no tensor": named(b"ctorch._utils\n_rebuild_parameter\n(}\x88" + HOOKS + b"tR"),
    "attributes of a tensor": named(tensor() + b"}b"),
    "a place that is no storage": b"\x80\x02(X\x07\x00\x00\x00storagetQ.",
    "a place that is no tuple": b"\x80\x02}Q.",
    "a storage of -1 items": named(tensor(storage=STORAGE % b"J\xff\xff\xff\xff")),
    "a storage of true items": named(tensor(storage=STORAGE % b"\x88")),
    "a storage of 2**63 items": named(tensor(storage=STORAGE % (b"\x8a\x09" + (2**63).to_bytes(9, "little")))),
    "a storage that is a dict": named(tensor(storage=b"}")),
    "a negative offset": named(tensor(offset=b"J\xff\xff\xff\xff")),
    "an offset that is true": named(tensor(offset=b"\x88")),
    "a negative size": named(tensor(shape=b"J\xff\xff\xff\xff\x85")),
    "a negative stride": named(tensor(stride=b"J\xff\xff\xff\xff\x85")),
    "more strides than sizes": named(tensor(stride=b"K\x01K\x01\x86")),
    "sizes that are strings": named(tensor(shape=b"X\x01\x00\x00\x00x\x85")),
    "nine dimensions": named(tensor(shape=b"(" + b"K\x01" * 9 + b"t", stride=b"(" + b"K\x01" * 9 + b"t")),
    "a number of 255 bytes": b"\x80\x02\x8a\xff" + b"\x01" * 255 + b".",
    "a long number of 2**31 bytes": b"\x80\x02\x8b\x00\x00\x00\x80.",
    "a string of 2**32 - 1 bytes": b"\x80\x02X\xff\xff\xff\xff.",
    "a string that is not UTF-8": named(tensor(), name=b"\xff"),
    "bytes of 2**62": b"\x80\x02\x8e" + (2**62).to_bytes(8, "little"),
    "an empty stack": b"\x80\x02s.",
    "a tuple of nothing": b"\x80\x02\x87.",
    "a tuple without a mark": b"\x80\x02t.",
    "values under a mark": b"\x80\x02}(s.",
    "a value never kept": b"\x80\x02h\x05.",
    "nothing to keep": b"\x80\x02q\x05.",
    "marks without end": b"\x80\x02" + b"(" * 100_000 + b".",
    "tuples without end": b"\x80\x02" + b")" * 1_000_000 + b".",
    "a key of tuples in tuples": b"\x80\x02})" + b"\x85" * 200_000 + b")s.",
    "a key of tuples that double": b"\x80\x02})" + b"q\x00h\x00\x86" * 100 + b")s.",
    "keys of tuples that double": b"\x80\x02}()" + b"q\x00h\x00\x86" * 100 + b")u.",
    "attributes of tuples that double": b"\x80\x02}})" + b"q\x00h\x00\x86" * 100 + b")sb.",
    "a dict in itself": b"\x80\x02}q\x00X\x01\x00\x00\x00xh\x00s.",
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_pickle_without_a_dict_of_tensors_is_refused(broken: str) -> None:
    """The error names the file and recommends the conversion."""
    assert len(BROKEN[broken]) <= PICKLE_LIMIT_BYTES
    with pytest.raises(ModelUnavailable, match=r"pytorch_model\.bin: .*convert it to safetensors"):
        read_tensors(FILE, BROKEN[broken])


def test_a_memo_index_takes_no_memory() -> None:
    """Python's reader in C allocates a table as long as the largest index."""
    tracemalloc.start()
    try:
        assert read_tensors(FILE, b"\x80\x02}r\xff\xff\xff\x07.") == {}
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_truncated_pickle_is_refused() -> None:
    """The pickle must have its STOP instruction."""
    for cut in range(len(PICKLED_FLOATS)):
        with pytest.raises(ModelUnavailable):
            read_tensors(FILE, PICKLED_FLOATS[:cut])


# All kinds of instructions, so that random programs get past their first byte.
PIECES = st.sampled_from(
    [
        *(bytes([byte]) for byte in b"(t)}RQbsu.\x85\x86\x87\x88\x89cqhrjXKMJ\x8a0NGl]ae"),
        *(b"K\x04", b"q\x00", b"h\x00", b"X\x01\x00\x00\x00x", b"ctorch\nFloatStorage\n"),
        *(REBUILD, HOOKS, STORAGE % b"K\x04", tensor()),
    ]
)


@settings(max_examples=200)
@given(st.lists(PIECES | st.binary(min_size=1, max_size=2), max_size=30))
def test_a_random_program_is_read_or_refused(pieces: list[bytes]) -> None:
    """Every program of known instructions gives tensors or ModelUnavailable."""
    try:
        tensors = read_tensors(FILE, b"\x80\x02" + b"".join(pieces) + b".")
    except ModelUnavailable as error:
        assert "pytorch_model.bin" in error.message
    else:
        assert all(isinstance(tensor, StoredTensor) for tensor in tensors.values())
