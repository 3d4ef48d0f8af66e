"""The `gt` command loads the module of the command that runs, and no other."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from gt import cli


def names(parser: argparse.ArgumentParser) -> list[str]:
    [commands] = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return list(commands.choices)


def test_each_command_is_listed_with_its_module() -> None:
    assert names(cli.parser()) == list(cli.COMMANDS)
    for command, module in cli.COMMANDS.items():
        assert names(cli.parser(command)) == [c for c, m in cli.COMMANDS.items() if m == module]


def test_an_unknown_command_is_told_all_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["prob"], ["--help"]):
        with pytest.raises(SystemExit):
            cli.main(words)
        said = capsys.readouterr()
        assert "probe" in said.out + said.err or not words, words


def test_a_health_check_loads_neither_client_nor_engines() -> None:
    """Kubernetes runs it every few seconds in each pod."""
    code = "import sys; from gt.cli import parser; parser('probe'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "gt.server.probe" in loaded
    assert not [m for m in loaded if m.startswith(("gt.client", "gt.worker", "gt.watch", "gt.clusters", "torch", "textual"))]
