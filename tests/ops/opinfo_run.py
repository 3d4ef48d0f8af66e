"""How many of PyTorch's ops GT gets right, by PyTorch's own samples: `python -m tests.ops.opinfo_run --help`."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

if __name__ == "__main__" and not __package__:  # run by its path: find `tests`
    sys.path.insert(0, str(Path(__file__).parents[2]))

from gt.testing import cluster  # noqa: E402
from tests.ops.opinfo import ENTRIES, FLOAT_NAMES, GT, PyTorch, full_name, judge, sample_dtype, samples  # noqa: E402
from tests.ops.opinfo_forms import FORMS  # noqa: E402

ENGINES = {"torch": "pytorch", "pytorch": "pytorch", "numpy": "numpy"}


def check(op: Any, engine: str, workers: int, count: int, form: str = "plain") -> list[str]:
    """The fault of each of the first samples of an entry ("" for none). Engine "itself" is PyTorch."""
    if engine == "itself":
        return [judge(op, s, PyTorch()) for s in samples(op, sample_dtype(op), count)]
    with cluster(workers, engine=ENGINES[engine]) as made:
        return FORMS[form](op, GT(made), count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="torch", help="numpy, torch, or itself: PyTorch against PyTorch")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--ops", default="", help="names, separated by commas: max, or max.binary for one entry of it")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--form", default="plain", help=f"the form to compare: {', '.join(FORMS)}")
    parser.add_argument("--all", action="store_true", help="print entries that are right, too")
    parser.add_argument("--each", action="store_true", help="print every difference of an entry, not the commonest")
    args = parser.parse_args()
    asked = set(filter(None, args.ops.split(",")))
    entries = [op for op in ENTRIES if not asked or {op.name, full_name(op)} & asked]
    warnings.simplefilter("ignore")
    begun = time.perf_counter()
    wrong_names: set[str] = set()
    right = total = 0
    for op in entries:
        try:
            found = check(op, args.engine, args.workers, args.samples, args.form)
        except AttributeError as missing:
            found = [str(missing)]
        except AssertionError as broken:
            found = [f"the cluster's invariants broke: {broken}"]
        bad = [f for f in found if f]
        right, total = right + len(found) - len(bad), total + len(found)
        if bad:
            wrong_names.add(op.name)
            shown = Counter(bad).most_common(None if args.each else 1)
            for text, _ in shown:
                print(f"FAIL {full_name(op):45} {len(bad)}/{len(found)}  {text}", flush=True)
        elif args.all:
            print(f"pass {full_name(op):45} {len(found)}", flush=True)
    names = list(dict.fromkeys(op.name for op in entries))
    floats = [n for n in names if n in FLOAT_NAMES]
    good = set(names) - wrong_names
    print(
        f"{args.engine}, {args.workers} workers: {len(good & set(floats))} of {len(floats)} names for floats, "
        f"{len(good)} of all {len(names)}; samples {right} of {total}; {time.perf_counter() - begun:.0f} s"
    )


if __name__ == "__main__":
    main()
