"""Packaging: the changelog's form, and the files of the source distribution and the wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import gt

ROOT = Path(__file__).parents[2]
SECTIONS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
NEEDED = ("tests/conftest.py", "docs/conf.py", "docs/pictures/life.svg", "examples/tutorial.ipynb",
          "examples/config_sharding.yaml", "tools/reference/examples.txt", "benchmarks/run.py", "Makefile", "Dockerfile",
          ".dockerignore", "requirements.txt", "gt/client/native.c", "AGENTS.md")  # fmt: skip

SAMPLE = (
    "tests/pure/test_layers.py", "tests/pure/test_sizes.py", "tests/pure/test_messages.py", "tests/pure/test_clusters.py",
    "tests/pure/test_stubs.py", "tests/ops/test_aliases.py", "tests/memory/test_views.py", "tests/nn/test_losses.py",
    "tests/socket/test_working_directory.py", "tests/docs/test_links.py", "tests/docs/test_life.py",
    "tests/backends/test_backends_registry.py", "tests/tensor_ops/test_tensor_ops_choice.py",
)  # fmt: skip


def test_the_changelog_has_the_usual_form() -> None:
    headings = re.findall(r"^(#+) (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings[0] == ("#", "Changelog") and headings[1] == ("##", "[Unreleased]")
    releases = [text for level, text in headings[2:] if level == "##"]
    assert releases and all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", text) for text in releases)
    assert releases[0].startswith(f"[{gt.__version__}]") and {text for level, text in headings if level == "###"} <= SECTIONS


def test_nobody_is_told_to_install_a_package_of_that_name_from_an_index() -> None:
    """On PyPI it is another project's."""
    told = re.compile(r"pip install[^`\n]*?[ '\"]gt(\[|['\"` ]|$)", re.M)
    pages = [
        p for folder in ("docs", "gt", "examples", "tools") for p in (ROOT / folder).rglob("*") if p.suffix in (".md", ".py")
    ]
    written = [p for p in pages if ROOT / "docs" / "reference" not in p.parents]  # (pages there are copies and generated)
    found = [str(p.relative_to(ROOT)) for p in (ROOT / "README.md", *written) if told.search(p.read_text())]
    assert not found and told.search("pip install 'gt[ray]'") and not told.search("pip install '.[ray]'")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel, and the `tree` of which they were made: a copy without anything compiled. No
    compiler was there: the parts in C are optional."""
    folder = tmp_path_factory.mktemp("packed")
    tree = folder / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "*.so", "reference"))
    shutil.copytree(ROOT / "tools" / "reference", tree / "tools" / "reference", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".dockerignore", tree)
    command = [sys.executable, "setup.py", "-q", "sdist", "-d", str(folder), "bdist_wheel", "-d", str(folder)]
    env = {"PATH": "/nonexistent", "CC": "/nonexistent/cc", "HOME": str(folder), "PROJECT_URL": "https://host.example/gt/"}
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_distributions_hold_the_files_that_tests_and_users_need(packed: Path) -> None:
    [sdist], [wheel], tree = packed.glob("*.tar.gz"), packed.glob("*.whl"), packed / "tree"
    with tarfile.open(sdist) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert set(NEEDED) <= names
    inside = set(zipfile.ZipFile(wheel).namelist())
    about = zipfile.ZipFile(wheel).read(f"gt-{gt.__version__}.dist-info/METADATA").decode()
    assert "Project-URL: Issues, https://host.example/gt/issues\n" in about
    wanted = {str(p.relative_to(tree)) for p in (tree / "gt").rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert wanted <= inside and "gt/py.typed" in inside and not [name for name in inside if name.endswith(".so")]


@pytest.mark.slow
def test_tests_run_from_an_unpacked_source_distribution(packed: Path, tmp_path: Path) -> None:
    """Some of each kind: tests of the tree, the op table, sessions, processes, documents and examples."""
    [sdist] = packed.glob("*.tar.gz")
    with tarfile.open(sdist) as tar:
        tar.extractall(tmp_path, filter="data")
    [tree] = tmp_path.iterdir()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SAMPLE]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GT_", "PYTEST", "PYTHONPATH"))}
    done = subprocess.run(command, cwd=tree, env=kept, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(r"\d+ passed|100%\]", done.stdout), done.stdout
    where = subprocess.run(
        [sys.executable, "-c", "import gt; print(gt.__file__)"], cwd=tree, env=kept, capture_output=True, text=True
    )
    assert where.stdout.strip() == str(tree / "gt" / "__init__.py"), "the tests were the sdist's own"
