"""The pages keep their word: links lead somewhere, code is code, figures are the measured ones."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from doubletime.cli.verbs import app
from ranks import ROOT, run_ranks

PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/**/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
)
README = ROOT / "README.md"
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"(?:<!-- (?P<mark>[^>]*) -->\n+)?^```python\n(?P<code>.*?)^```", re.M | re.S)
QUOTE = re.compile(r"^<!-- (benchmarks/results/\S+\.md) -->\n(.*?)^<!-- end -->", re.M | re.S)


def _name(path):
    return str(path.relative_to(ROOT)) if isinstance(path, Path) else None


def _prose(page):
    """A page without its code blocks."""
    return re.sub(r"^    .*$|^```.*?^```", "", page.read_text(), flags=re.M | re.S)


def _anchors(page):
    """The anchors that a page's headings get: lower case, dashes for blanks, no punctuation."""
    headings = re.findall(r"^#+ +(.*?)\s*$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _leads_somewhere(page, target):
    path, _, anchor = target.partition("#")
    place = (page.parent / path).resolve() if path else page
    if not place.exists() or ROOT not in (place, *place.parents):
        return False
    return not anchor or place.suffix != ".md" or anchor in _anchors(place)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_within_the_repository_lead_somewhere(page):
    targets = [target for target in LINK.findall(_prose(page)) if not re.match(r"[a-z]+:", target)]
    assert [target for target in targets if not _leads_somewhere(page, target)] == []


def _blocks():
    for page in PAGES:
        for number, found in enumerate(FENCE.finditer(page.read_text()), 1):
            name = f"{_name(page)}-{number}"
            yield pytest.param(found["mark"] or "", found["code"], id=name)


@pytest.mark.parametrize(("mark", "code"), list(_blocks()))
def test_python_blocks_are_python_and_run_as_marked(mark, code, tmp_path):
    """`<!-- run -->` above a block: it runs alone; `<!-- run: 2 ranks -->`: under mpiexec."""
    ast.parse(code)
    if not mark.startswith("run"):
        return
    ranks = re.search(r"(\d+) ranks?", mark)
    script = tmp_path / "block.py"
    script.write_text(code)
    if ranks:
        run_ranks(script, int(ranks[1]), timeout=100).check()
    else:
        subprocess.run([sys.executable, script], check=True, timeout=100, cwd=tmp_path)


def _command_lines():
    """What readers may copy: lines of code blocks, and code within lines."""
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        lines = re.findall(r"^(?: {4})?(doubletime .*)$", "\n".join(_code_blocks(text)), re.M)
        lines += re.findall(r"`(doubletime [^`]+)`", text)
        for line in dict.fromkeys(lines):
            if "…" not in line:  # something is left out
                yield pytest.param(line, id=f"{_name(page)}: {line}")


def _code_blocks(text):
    return re.findall(r"^```(?:bash)?\n(.*?)^```", text, re.M | re.S) + [
        line for line in text.splitlines() if line.startswith("    ")
    ]


@pytest.mark.parametrize("line", list(_command_lines()))
def test_commands_have_the_options_that_the_pages_name(line):
    words = shlex.split(line, comments=True)[1:]
    command, ctx = typer.main.get_command(app), None
    while hasattr(command, "get_command"):
        if not words:
            return  # a verb's name
        ctx = command.make_context("doubletime", words[:1], parent=ctx)
        command, words = command.get_command(ctx, words[0]), words[1:]
        assert command is not None
    try:
        command.make_context("", words, parent=ctx).close()
    except Exception as error:
        if type(error).__name__ != "MissingParameter":  # what is left out on purpose
            raise


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_quoted_figures_are_the_measured_ones(page):
    for name, quoted in QUOTE.findall(page.read_text()):
        result = ROOT / name
        assert result.with_suffix(".json").exists(), f"{name} has no figures beside it"
        assert quoted.strip() == result.read_text().strip(), f"quote {name} again"


def test_every_quotation_is_closed_and_every_result_is_quoted():
    quoted = set()
    for page in PAGES:
        text = page.read_text()
        mine = {name for name, _ in QUOTE.findall(text)}
        assert set(re.findall(r"^<!-- (benchmarks/results/\S+) -->$", text, re.M)) == mine
        quoted |= mine
    assert quoted == {_name(path) for path in (ROOT / "benchmarks" / "results").glob("*.md")}


def test_the_list_of_modules_is_the_package_s():
    command = [sys.executable, ROOT / "scripts" / "list_modules.py", "--show"]
    expected = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=60
    ).stdout
    page = (ROOT / "docs" / "structure.md").read_text()
    assert page == expected, "run `python scripts/list_modules.py`"
