"""`python benchmarks/run.py [CASE ...] [--json]`: GT and its rival, measured in turns. A ratio over 1 means GT is faster.

A module of this folder adds cases by a dict `CASES`: name -> function that yields results (see measure.py)."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TOOLS = {
    "run",
    "compare",
    "measure",
    "models",
    "gpu",
    "share_client",
    "share_sessions",
    "unchecked",
}  # modules here that hold no cases, or are run by themselves
Case = Callable[[], Iterator[dict[str, Any]]]


def cases() -> dict[str, Case]:
    """Every case there is, by name."""
    sys.path.insert(0, str(HERE)) if str(HERE) not in sys.path else None
    found: dict[str, Case] = {}
    for path in sorted(HERE.glob("*.py")):
        if path.stem not in TOOLS:
            found.update(getattr(importlib.import_module(path.stem), "CASES", {}))
    return found


def chosen(names: list[str]) -> dict[str, Case]:
    known = cases()
    for name in names:
        if name not in known:
            raise SystemExit(f"no case {name!r}: known are {', '.join(known)}")
    return {name: known[name] for name in names} if names else known


def results(names: list[str]) -> Iterator[dict[str, Any]]:
    for case in chosen(names).values():
        yield from case()


def line(result: dict[str, Any]) -> str:
    if "rivals" in result:  # several rivals side by side
        return str(importlib.import_module("loops").line(result))
    text = "{case:<22} gt {gt:>12.6g}  rival {rival:>12.6g}  {unit:<16} ratio {ratio:.2f}".format(**result)
    return text + " ({low:.3f} to {high:.3f})".format(**result) if "low" in result else text


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure GT and its rivals.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="which cases (all)")
    parser.add_argument("--json", action="store_true", help="one object a line: case, gt, rival, unit, ratio")
    parser.add_argument("--list", action="store_true", help="name the cases")
    args = parser.parse_args(argv)
    if args.list:
        print("\n".join(cases()))
        return 0
    for result in results(args.cases):
        print(json.dumps(result) if args.json else line(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
