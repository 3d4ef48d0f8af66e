"""The site is built without a warning, and its reference has every public name, each with an example that ran."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gt.environment import VARIABLES
from gt.watch.statistics import described

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import browser_check  # noqa: E402
from reference.api import NAMESPACES, Namespace, entries  # noqa: E402
from reference.tables import TABLES, commands  # noqa: E402


@pytest.mark.parametrize("namespace", NAMESPACES, ids=lambda n: n.prefix)
def test_every_public_name_has_an_example_that_runs(namespace: Namespace) -> None:
    missing = [name for name, _, example in entries(namespace) if example is None]
    assert not missing, missing


def test_the_names_are_all_of_them() -> None:
    """A guard against looking in the wrong place."""
    found = {n.prefix: {name for name, _ in n.names()} for n in NAMESPACES}
    assert {"matmul", "softmax", "compile", "PersistentKernel"} <= found["gt"] and len(found["gt"]) > 600
    assert {"backward", "softmax", "item"} <= found["Tensor"] and {"Linear", "LSTM"} <= found["gt.nn"]


def test_the_tables_have_every_variable_every_statistic_and_every_command() -> None:
    from gt import cli

    assert all(f"`{name}`" in TABLES["variables"]() for name in VARIABLES)
    assert all(f"| `{name}` | " in TABLES["statistics"]() for _, name, _ in described())
    assert "| `gt_worker_busy_seconds_total` | counter | " in TABLES["statistics"]()
    options = TABLES["options"]()
    for name, parser in commands(cli.parser()):
        assert f"## {name}\n" in options
        assert parser.description and parser.description[0].isupper() and parser.description.endswith("."), name
        shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
        assert all(f"`{flag}`" in options for action in shown for flag in action.option_strings)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once for all tests of it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_reads_offline(site: Path) -> None:
    outside = {
        link
        for page in site.glob("*.html")
        for link in re.findall(r'(?:src|<link[^>]*href)="(https?:[^"]+)"', page.read_text())
    }
    assert not outside, f"pages load {outside}: they would not read offline"


@pytest.mark.slow
def test_no_page_is_wider_than_its_window(site: Path) -> None:
    """In a browser, at 400 and 1400 pixels, light and dark."""
    if browser_check.chromium() is None:
        pytest.skip(f"no browser is installed: looked for {', '.join(browser_check.NAMES)}")
    found = browser_check.measure(site)
    assert len(found) > 200 and {f["dark"] for f in found} == {"light", "dark"}
    assert not [f for f in found if f["over"] > browser_check.MARGIN]
