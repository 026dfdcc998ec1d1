"""Write the list of modules into docs/structure.md, each by its docstring's first line.

`--show` prints the page as it should be, and writes nothing.
"""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "doubletime"
PAGE = ROOT / "docs" / "structure.md"
BEGIN, END = "<!-- modules -->\n", "<!-- end -->\n"
# From the top: each imports only what stands below it.
FLOORS = ("cli", "reporting", "planning", "training", "cluster", "collectives", "mpi")


def purpose(module: Path) -> str:
    """The first line of a module's docstring, as Markdown."""
    text = ast.get_docstring(ast.parse(module.read_text()))
    if text is None:
        raise SystemExit(f"{module} has no docstring")
    return text.splitlines()[0].replace("|", "\\|")


def table(folder: Path, *, is_deep: bool = True) -> str:
    """One row a module; those of folders within it last, if asked."""
    below = sorted(folder.glob("*/**/*.py")) if is_deep else []
    rows = [
        f"| `{module.relative_to(folder)}` | {purpose(module)} |"
        for module in [*sorted(folder.glob("*.py")), *below]
        if module.name != "__init__.py"
    ]
    return "\n".join(["| module | what it is for |", "| --- | --- |", *rows])


def modules() -> str:
    """All floors."""
    floors = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    if floors != set(FLOORS):
        raise SystemExit(f"FLOORS names {sorted(FLOORS)}, the package has {sorted(floors)}")
    parts = [f"### `doubletime`\n\n{table(PACKAGE, is_deep=False)}\n"]
    for floor in FLOORS:
        folder = PACKAGE / floor
        parts.append(f"### `{floor}`\n\n{purpose(folder / '__init__.py')}\n\n{table(folder)}\n")
    return "\n".join(parts)


def main() -> None:
    """Write the page, or show it."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{PAGE} has no place between {BEGIN.strip()} and {END.strip()}")
    page = f"{before}{BEGIN}\n{modules()}\n{END}{after}"
    if "--show" in sys.argv[1:]:
        sys.stdout.write(page)
    else:
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
