"""The function of mimalloc that returns unused memory to the system. PyTorch's builds for ARM link this allocator into libc10
and do not export its functions, so the function is found by the symbol table of that file."""

from __future__ import annotations

import ctypes
import mmap
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

COLLECT = "mi_collect"
EXPORTED = "_ZN3c1015GetCPUAllocatorEv"  # a function of libc10 with a known address, from which others are counted
ELF64 = b"\x7fELF\x02\x01"  # 64 bits, little-endian
SECTIONS = struct.Struct("<40xQ10xHH2x")  # of a file's header: the offset of its section headers, the size of one, their number
SECTION = struct.Struct("<4xI16xQQI20x")  # its type, the offset and size of its bytes, the section that it refers to
SYMBOL = struct.Struct("<I4xQ8x")  # the offset of its name, its value
TABLE = 2  # the type of the section with all symbols


def symbol_values(path: Path, names: list[str]) -> dict[str, int]:
    """The values of these symbols in a library's table of all symbols, without the missing ones; a stripped library has no such
    table."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[: len(ELF64)] != ELF64:
            return {}
        first, size, count = SECTIONS.unpack_from(data)
        sections = [SECTION.unpack_from(data, first + i * size) for i in range(count)]
        found = {}
        for start, length, names_at in (part[1:] for part in sections if part[0] == TABLE):
            _, strings, strings_length, _ = sections[names_at]
            texts = data[strings : strings + strings_length]
            for at, value in SYMBOL.iter_unpack(data[start : start + length]):
                name = texts[at : texts.find(b"\0", at)].decode()
                if name in names:
                    found[name] = value
        return found


def collect_function() -> Callable[[bool], Any] | None:
    """mimalloc's `mi_collect(force)`, if this process has loaded a PyTorch with mimalloc inside. It returns unused memory of
    the calling thread, and memory that no thread uses."""
    torch: Any = sys.modules.get("torch")
    path = Path(torch.__file__).parent / "lib" / "libc10.so" if torch is not None else None
    if path is None or not path.is_file():
        return None
    library = ctypes.CDLL(str(path))
    if hasattr(library, COLLECT):
        exported: Callable[[bool], Any] = library[COLLECT]
        return exported
    values = symbol_values(path, [COLLECT, EXPORTED])
    if COLLECT not in values or EXPORTED not in values or not hasattr(library, EXPORTED):
        return None
    address = ctypes.cast(library[EXPORTED], ctypes.c_void_p).value
    assert address is not None
    return ctypes.CFUNCTYPE(None, ctypes.c_bool)(address - values[EXPORTED] + values[COLLECT])
