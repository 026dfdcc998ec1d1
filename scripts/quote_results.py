"""Bring the figures that pages quote up to date with `benchmarks/results`; run after benchmarks.

A quote stands between `<!-- benchmarks/results/NAME.md -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
QUOTE = re.compile(r"^(<!-- (benchmarks/results/\S+\.md) -->\n).*?^(<!-- end -->)", re.M | re.S)


def main() -> None:
    """Rewrite every quote in the README and in docs."""
    for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")):
        text = page.read_text()
        renewed = QUOTE.sub(
            lambda quote: f"{quote[1]}{(ROOT / quote[2]).read_text()}{quote[3]}", text
        )
        if renewed != text:
            page.write_text(renewed)
            print(f"renewed the figures in {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
