"""The environment variables: each is declared and read in one place, and wrong values and names are reported."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

import gt
from gt import environment
from gt.environment import VARIABLES
from gt.errors import ConfigError

ROOT = Path(gt.__file__).parent
FLAGS = [v for v in VARIABLES.values() if isinstance(v.default, bool)]


@pytest.mark.parametrize("variable", FLAGS, ids=lambda v: v.name)
def test_a_flag_takes_0_and_1_true_and_false_yes_and_no(
    variable: environment.EnvironmentVariable, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text, want in {**environment.TRUTHS, "TRUE": True, "No": False, " 1 ": True, "": variable.default}.items():
        monkeypatch.setenv(variable.name, text)
        assert variable.value() is want
    monkeypatch.delenv(variable.name)
    assert variable.value() is variable.default


WRONG = {
    "GT_VERBOSE": ("maybe", "one of 0, 1, true, false, yes, no"),
    "GT_COLLECTIVES": ("smoke", "one of memory, gloo, mail"),
    "GT_WORKER_BATCH_SIZE": ("ten", "a whole number from 1 up"),
    "GT_STALL_SECONDS": ("-1", "a number of seconds from 0 up"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_error_of_an_invalid_value_lists_the_valid_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value, accepted = WRONG[name]
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"{name}='{value}': expected {accepted}"):
        environment.check()


def test_a_process_does_not_mind_a_wrong_value_of_a_variable_that_others_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GT_VERBOSE", "maybe")
    assert environment.check([environment.CLIENT]) == []


@pytest.mark.parametrize("text", ["0", "-3", "ten", "1.5"])
def test_the_batch_size_is_a_whole_number_from_1_up(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GT_WORKER_BATCH_SIZE", "10")
    assert environment.WORKER_BATCH_SIZE.value() == 10
    monkeypatch.setenv("GT_WORKER_BATCH_SIZE", text)
    with pytest.raises(ValueError, match="GT_WORKER_BATCH_SIZE"):
        environment.WORKER_BATCH_SIZE.value()


def test_an_unknown_variable_is_told_with_the_nearest_known_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GT_VERBSOE", "1")
    assert environment.check() == ["GT knows no environment variable GT_VERBSOE: did you mean GT_VERBOSE?"]
    monkeypatch.setenv("GT_VERBSOE", "")
    monkeypatch.delenv("GT_VERBSOE")
    monkeypatch.setenv("GT_QQQQ", "1")
    [remark] = environment.check()
    assert "GT_QQQQ: known are GT_AUTO_COMPILE, " in remark


def test_only_variables_that_a_client_does_not_read_are_without_effect_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
    assert environment.without_effect("pool:9000") == []
    monkeypatch.setenv("GT_KEY", "k")
    monkeypatch.setenv("GT_VERBOSE", "1")
    [remark] = environment.without_effect("pool:9000")
    assert "GT_VERBOSE" in remark and "pool:9000" in remark and "the server and the worker" in remark


def test_a_warning_points_at_the_line_outside_gt() -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        environment.warn(["something"])
    assert found[0].filename == __file__


def test_every_variable_has_a_description_and_its_readers() -> None:
    for name, variable in VARIABLES.items():
        assert name == variable.name and name.startswith(environment.PREFIX) and variable.doc
        assert set(variable.readers) and set(variable.readers) <= set(environment.ALL)


def test_nothing_else_reads_a_variable_of_gt_s() -> None:
    read = re.compile(r"(environ|getenv)[^\n]*['\"]GT_")
    for path in ROOT.rglob("*.py"):
        found = [line for line in path.read_text().splitlines() if read.search(line) and "{**os.environ" not in line]
        assert not found, f"{path.relative_to(ROOT)}: {found}: declare it in gt/environment.py"


def test_every_variable_that_a_text_of_ours_names_is_declared() -> None:
    paths = [*ROOT.rglob("*.py"), *(ROOT.parent / "docs").rglob("*.md"), ROOT.parent / "README.md"]
    for path in paths:
        named = set(re.findall(r"\bGT_[A-Z][A-Z_]*[A-Z]\b", path.read_text()))
        assert named <= set(VARIABLES), f"{path}: {named - set(VARIABLES)}"


def test_the_page_on_variables_has_a_row_for_each() -> None:
    page = (ROOT.parent / "docs" / "environment.md").read_text()
    for variable in VARIABLES.values():
        assert variable.row() in page, f"docs/environment.md lacks the row\n{variable.row()}"
