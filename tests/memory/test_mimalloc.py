"""The function that returns unused memory of PyTorch's builds for ARM is found, wherever such a build is loaded."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from gt.worker.mimalloc import EXPORTED, collect_function, symbol_values


def library(symbols: dict[str, int]) -> bytes:
    """A file with a symbol table, of the form that linkers write."""
    names, rows = b"\0", struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    for name, value in symbols.items():
        rows += struct.pack("<IBBHQQ", len(names), 2, 0, 1, value, 8)
        names += name.encode() + b"\0"
    at = 64
    sections = [(0, 0, 0, 0), (2, at, len(rows), 2), (3, at + len(rows), len(names), 0)]
    headers = b"".join(
        struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, start, size, link, 0, 8, 24) for kind, start, size, link in sections
    )
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head += struct.pack("<HHIQQQIHHHHHH", 3, 183, 1, 0, 0, at + len(rows) + len(names), 0, 64, 0, 0, 64, len(sections), 2)
    return head + rows + names + headers


def test_values_of_symbols_are_read_from_a_library_s_table(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(library({"shown": 0x1000, "hidden": 0x1230, "hidden_too": 0x2000}))
    assert symbol_values(path, ["hidden", "shown", "missing"]) == {"hidden": 0x1230, "shown": 0x1000}


@pytest.mark.parametrize("data", [library({}), b"MZ" + bytes(100)], ids=["stripped", "of another system"])
def test_a_library_without_symbols_gives_none(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(data)
    assert symbol_values(path, ["hidden"]) == {}


def test_it_is_found_where_pytorch_has_mimalloc_inside() -> None:
    torch = pytest.importorskip("torch")
    path = Path(torch.__file__).parent / "lib" / "libc10.so"
    has = path.is_file() and b"mimalloc: warning" in path.read_bytes()
    collect = collect_function()
    assert (collect is not None) == has
    if collect is not None:
        assert symbol_values(path, [EXPORTED])
        held = [torch.ones(1 << 18) for _ in range(8)]
        held = held[::2]
        collect(True)
        assert all(bool((each == 1).all()) for each in held), "memory in use stays as it was"
