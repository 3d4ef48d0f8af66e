"""The machine code of every hot loop, read and not run: packed instructions of the full width, no element by itself.

Compiled for x86-64-v3, x86-64-v4 and aarch64 by this machine's compiler or a cross compiler (Debian's g++-aarch64-linux-gnu,
g++-x86-64-linux-gnu), where warnings are errors; an architecture for which there is none is skipped.
"""

import platform
import re
import shutil
import subprocess
from dataclasses import dataclass

import pytest

from gt.tensor_ops.cpp import build

X86 = r"v?(?:div|mul|add|sub|sqrt|min|max|cvt\w*|fn?m(?:add|sub)\d+|rcp\w*)"
ARM = r"f(?:div|mul|add|sub|sqrt|min|max|cvt\w*|n?m(?:add|sub|la|ls)|neg)"


@dataclass(frozen=True)
class Target:
    machine: str
    tables: dict[str, list[str]]
    scalar: str  # an instruction that computes with one element
    packed: str  # one that computes with a whole register


V3, V4 = ({name: build.X86_SETS[name]} for name in ("gt_avx2", "gt_avx512"))
TARGETS = {
    "x86-64-v3": Target("x86_64", V3, rf"{X86}s[sd]\s", rf"{X86}p[sd]\s.*%ymm"),
    "x86-64-v4": Target("x86_64", V4, rf"{X86}s[sd]\s", rf"{X86}p[sd]\s.*%zmm"),
    "aarch64": Target("aarch64", {"gt_native": build.NATIVE[1:]}, rf"{ARM}\s+[sdh]\d", rf"{ARM}\s+v\d+\.(?:4s|2d)"),
}
KERNEL = re.compile(r"::(unary|binary|rms_rows|unary_part|binary_part)<(?:\(anonymous namespace\)::)?(\w+)(?:, ([^>]*))?>\(")


def tool(machine, name):
    """This machine's, where it is of that architecture, else the cross one."""
    return shutil.which(name if platform.machine() == machine else f"{machine}-linux-gnu-{name}")


@pytest.fixture(scope="module", params=TARGETS)
def functions(request, tmp_path_factory):
    """The instructions of each kernel: [(address, text)], by its name."""
    target = TARGETS[request.param]
    cxx, objdump = tool(target.machine, "g++"), tool(target.machine, "objdump")
    if not (cxx and objdump):
        pytest.skip(f"no g++ and objdump for {target.machine} here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "FLAGS", [*build.FLAGS, "-Wall", "-Wextra", "-Werror"])
        objects = build.compile_objects(cxx, target.tables, tmp_path_factory.mktemp("objects"))
    command = [objdump, "-d", "-C", "--no-show-raw-insn", objects[1]]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {}
    for part in re.split(r"\n\n(?=[0-9a-f]+ <)", text):
        head, _, body = part.partition("\n")
        if kernel := KERNEL.search(head):
            lines = re.findall(r"^\s*([0-9a-f]+):\t(.*)$", body, re.M)
            found[" ".join(filter(None, kernel.groups()))] = [(int(at, 16), said) for at, said in lines]
    return target, found


def of_elements(target, instructions):
    return [said for _, said in instructions if re.match(target.scalar, said)]


def of_registers(target, instructions):
    return [said for _, said in instructions if re.match(target.packed, said)]


def innermost_loops(instructions):
    """Instructions between a jump back and where it jumps to, where no other such stretch lies inside."""
    spans = []
    for at, said in instructions:
        if jump := re.match(r"(?:j\w+|b\.\w+|cbn?z|tbn?z|b)\s.*?([0-9a-f]+) <", said):
            if int(jump[1], 16) <= at:
                spans.append((int(jump[1], 16), at))
    inner = [a for a in spans if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in spans)]
    return [[line for line in instructions if begin <= line[0] <= end] for begin, end in inner]


def test_elementwise_kernels_compute_with_whole_registers(functions):
    target, found = functions
    assert sum(name.startswith("unary ") for name in found) == 24 and sum(name.startswith("binary ") for name in found) == 28
    for name, instructions in found.items():
        if name.startswith("rms_rows") or "GeluErf double" in name:  # its erfc is the C library's, element by element
            continue
        assert not of_elements(target, instructions), name
        assert of_registers(target, instructions) or "Relu" in name, name


def test_the_divisions_of_silu_and_gelu_are_packed(functions):
    target, found = functions
    for op in ("Silu", "GeluTanh", "Sigmoid"):
        for dtype in ("float", "double", "(anonymous namespace)::half_t", "(anonymous namespace)::bfloat_t"):
            packed = of_registers(target, found[f"unary {op} {dtype}"])
            assert any("div" in said.split()[0] for said in packed), (op, dtype)


def test_the_inner_loops_of_rms_norm_compute_with_whole_registers(functions):
    target, found = functions
    rows = {name: instructions for name, instructions in found.items() if name.startswith("rms_rows")}
    assert len(rows) == 4
    for name, instructions in rows.items():
        loops = [loop for loop in innermost_loops(instructions) if of_registers(target, loop)]
        assert len(loops) >= 2, name
        for loop in loops:
            assert not of_elements(target, loop), name


def test_code_that_computes_element_by_element_is_noticed(functions):
    target, found = functions
    assert of_elements(target, found["unary GeluErf double"] + found.get("unary_part GeluErf double", []))
