"""`gt backends`: list, check, build, configure and measure backends from the command line."""

import argparse
import json
import os
import platform
import shutil
import sys
from typing import Any

from gt import backends
from gt.backends.machine import driver_reason
from gt.tensor_ops import choice, config, measure
from gt.tensor_ops.config import AUTO, NAMES
from gt.tensor_ops.cpp.build import BuildError, build, compiler

SUMMARY = "list, check, build, configure and measure backends"
COMPILED = ("cpp", "opencl", "cuda")  # whose kernels are built here


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `backends` to the subcommands of `gt`. `args.run` is the function to call; it returns the exit code."""
    parser = subparsers.add_parser("backends", help=SUMMARY, description=SUMMARY)
    parser.add_argument("--verbose", action="store_true", help="show devices, memory, dtypes and self-tests as well")
    parser.add_argument("--json", action="store_true", help="print the results of the probes as JSON")
    parser.set_defaults(run=show)
    commands = parser.add_subparsers(metavar="command")
    commands.add_parser("test-capabilities", help="list the compilers and libraries of this machine").set_defaults(
        run=capabilities
    )
    built = commands.add_parser("build", help="compile kernels and test them")
    # Not `choices`: argparse refuses an empty list with them.
    built.add_argument("names", nargs="*", type=_compiled, metavar="cpp|cuda|opencl", help="backends to compile (default: all)")
    built.set_defaults(run=build_kernels)
    _add_configure(commands.add_parser("configure", help="show or change backend.json"))
    measured = commands.add_parser("benchmark", help="build, test and measure every backend")
    measured.add_argument("--rows", type=_count, default=1024, help="number of rows of 4096 float32 values (default: 1024)")
    measured.add_argument("--output", default="gt-backends.png", help="file of the chart (default: gt-backends.png)")
    measured.set_defaults(run=benchmark)
    return parser


def _compiled(name: str) -> str:
    if name not in COMPILED:
        raise argparse.ArgumentTypeError(f"no kernels to build for {name!r}: choose from {', '.join(COMPILED)}")
    return name


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a number of rows of 1 or more, got {text!r}")
    return int(text)


def _add_configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--show", action="store_true", help="print the configuration in force and its file")
    parser.add_argument("--backend", choices=[*NAMES, AUTO], help="backend to use if it is available")
    parser.add_argument(
        "--force", choices=[*NAMES, "none"], help="backend to use without a fallback: an error if it is not available"
    )
    parser.add_argument("--priority", help='order in which to try backends, such as "cpp,cuda,opencl,python"; auto: by speed')
    parser.set_defaults(run=configure)


def show(args: argparse.Namespace) -> int:
    if args.json:
        print(json.dumps(backends.all_infos(), indent=2))
    else:
        backends.list_backends(verbose=args.verbose)
    return 0


def capabilities(args: argparse.Namespace) -> int:
    facts = {
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "vector instructions": ", ".join(_vector_flags()) or "unknown",
        "C++ compiler": compiler() or "none",
        "NVIDIA driver": driver_reason() or "found",
        "nvcc": shutil.which("nvcc") or "none (not needed: Triton compiles by itself)",
    }
    for name, fact in facts.items():
        print(f"{name:20} {fact}")
    for name in NAMES:
        reason = backends.registry().arrays_reason(name)
        print(f"{name:20} {'works' if reason is None else f'not available: {reason}'}")
    return 0


def _vector_flags() -> list[str]:
    wanted = ("avx", "avx2", "fma", "avx512f", "asimd", "sve")
    try:
        with open("/proc/cpuinfo") as file:
            words = set(file.read().split())
    except OSError:
        return []
    return [flag for flag in wanted if flag in words]


def build_kernels(args: argparse.Namespace) -> int:
    names = args.names or COMPILED
    failed = 0
    for name in names:
        if name == "cpp":
            try:
                print(f"cpp: built {build(force=True)}")
            except BuildError as error:
                print(f"cpp: {error}", file=sys.stderr)
                failed = 1
                continue
        reason = backends.registry().arrays_reason(name)
        print(f"{name}: {'built and tested' if reason is None else f'not available: {reason}'}")
        # A backend that was not named may be missing; a requested one may not.
        failed |= int(reason is not None and bool(args.names))
    return failed


def configure(args: argparse.Namespace) -> int:
    changes: dict[str, Any] = {}
    if args.backend:
        changes["preferred_backend"] = config.asked(args.backend)
    if args.force:
        changes["force_backend"] = None if args.force == "none" else args.force
    if args.priority:
        names = tuple(name.strip() for name in args.priority.split(","))
        changes["backend_priority"] = None if names == (AUTO,) else names
    try:
        if changes:
            path = config.user_path()
            print(f"wrote {config.save(config.changed(_present(), **changes), path)}")
        if args.show or not changes:
            print(f"# {config.find()}")
            print(config.find().read_text(), end="")
            print(f"# in use: {choice.KernelChoice().active().name}")
    except (OSError, ValueError, RuntimeError) as error:
        print(f"gt backends configure: {error}", file=sys.stderr)
        return 1
    return 0


def _present() -> config.TensorOpsConfig:
    """The configuration to change: the user's file, or the packaged default if there is none yet."""
    path = config.user_path()
    return config.load(path if path.exists() else config.PACKAGED)


def benchmark(args: argparse.Namespace) -> int:
    for name in NAMES:
        reason = backends.registry().arrays_reason(name)
        print(f"{name}: {'built, self-test passed' if reason is None else f'left out: {reason}'}")
    results = measure.all_backends([n for n in NAMES if backends.registry().arrays_reason(n) is None], rows=args.rows)
    measure.show(results)
    try:
        print(f"wrote {measure.chart(results, args.output, f'({args.rows}, {measure.COLUMNS}) float32')}")
    except ImportError:
        print("no chart: it needs matplotlib (pip install matplotlib)", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:  # a missing folder, or a file format that matplotlib does not write
        print(f"no chart: {error}", file=sys.stderr)
        return 1
    return 0
