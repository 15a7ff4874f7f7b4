"""Render docs/overview.svg: a decoder, the modules that three papers change, and one measured result per paper.

    python scripts/draw_overview.py

`make readme` calls this script; tests/test_docs.py checks that its numbers equal the numbers in README.
"""

from html import escape
from pathlib import Path

from formerlab.commands.readme import verdicts_by_scale
from formerlab.report.claims.readme_findings import README_CLAIMS, number_text
from formerlab.report.claims.render import best_verdicts, outcome_text

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "docs/overview.svg"
RED, GREEN, BLUE, GREY = "#c4441c", "#0a7a5a", "#1763a6", "#8a8f98"
PANELS = (
    ("Parameter tokens", "Tokenformer", RED,
     "vision-matches-vit-equal-parameters", "error rate / error rate of a ViT"),
    ("Averages over depth", "DenseFormer", GREEN,
     "denseformer-better-at-equal-depth", "perplexity relative to the plain model"),
    ("KV-cache eviction", "Decay", BLUE,
     "decay-beats-h2o", "accuracy minus accuracy of H2O"),
)  # fmt: skip
"""Title, paper, colour, claim, and meaning of the claim's value."""


def text(x: float, y: float, content: str, size: int = 13, colour: str = "#1f2328", style: str = "") -> str:
    """Return an SVG <text> element; positions and sizes are in units of the view box (1000 x 310)."""
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" {style}>{escape(content)}</text>'


def box(x: float, y: float, width: float, height: float, colour: str, fill: str = "none", style: str = "") -> str:
    """Return an SVG <rect> element; positions and sizes are in units of the view box (1000 x 310)."""
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" stroke="{colour}" fill="{fill}" {style}/>'


def decoder() -> list[str]:
    """Return the shapes of the decoder's blocks; modules that a paper changes have the colour of the paper's panel."""
    shapes = [text(92, 62, "one decoder", 14, style='text-anchor="middle" font-weight="bold"')]
    for row, name in enumerate(("block 3", "block 2", "block 1")):
        y = 78 + row * 62
        shapes += [box(32, y, 120, 50, GREY, "#f6f7f9"), text(92, y + 14, name, 11, GREY, 'text-anchor="middle"')]
        for left, colour, fill, word in ((40, BLUE, "#e3eefb", "attend"), (94, RED, "#fbe9e3", "project")):
            label = text(left + 25, y + 35, word, 11, colour, 'text-anchor="middle"')
            shapes += [box(left, y + 20, 50, 22, colour, fill), label]
    shapes += [
        f'<path d="M152 {y} C 186 {y} 186 {y - 62} 152 {y - 62}" stroke="{GREEN}" fill="none"/>' for y in (165, 227)
    ]
    shapes += [f'<path d="M152 232 C 206 222 206 108 152 98" stroke="{GREEN}" fill="none"/>']
    return [*shapes, text(92, 282, "tokens in", 11, GREY, 'text-anchor="middle"')]


def parameter_tokens(x: float) -> list[str]:
    """Return the shapes of rows of K and V; new rows are dashed."""
    shapes = [text(x, 88, "y = gelu(tau x Kᵀ / ‖x Kᵀ‖) V", 12, RED)]
    for row in range(6):
        dashed = 'stroke-dasharray="3 2"' if row > 3 else ""
        fill = "none" if row > 3 else "#fbe9e3"
        shapes += [box(x + column, 112 + row * 17, 70, 12, RED, fill, dashed) for column in (0, 84)]
    return [*shapes, text(x + 164, 140, "keys, values", 11), text(x + 164, 202, "grow: add rows", 11)]


def averages(x: float) -> list[str]:
    """Return boxes for the embedding X0 and the block outputs X1 to X4, and arcs to the last average."""
    shapes = [text(x, 88, "Yᵢ = Σⱼ αᵢⱼ Xⱼ", 12, GREEN)]
    for block in range(5):
        centre = x + 22 + block * 46
        shapes += [box(centre - 14, 180, 28, 24, GREEN, "#e2f3ec"), text(centre - 7, 196, f"X{'₀₁₂₃₄'[block]}", 12)]
        if block < 4:
            end, height = x + 206, 178 - (4 - block) * 30
            shapes.append(
                f'<path d="M{centre} 180 C {centre} {height} {end} {height} {end} 180" stroke="{GREEN}" fill="none"/>'
            )
    return shapes


def cache(x: float) -> list[str]:
    """Return the shapes of the keys of a cache; evicted keys are pale."""
    shapes = [text(x, 88, "Sₖ ← α Sₖ + pₖ, evict the lowest score", 12, BLUE)]  # noqa: RUF001
    heights = (44, 8, 12, 40, 6, 20, 9, 30, 48)
    for key, height in enumerate(heights):
        retained = height > 15
        style = "" if retained else 'stroke-dasharray="3 2" opacity="0.55"'
        shapes.append(box(x + key * 25, 180 - height, 18, height, BLUE, "#9cc3ec" if retained else "none", style))
        shapes.append(box(x + key * 25, 184, 18, 18, BLUE, "#e3eefb" if retained else "none", style))
    return shapes


def render_svg() -> str:
    """Return the figure as SVG text."""
    verdicts = {verdict.claim.id: verdict for verdict in best_verdicts(verdicts_by_scale(ROOT))}
    shapes = [box(0.5, 0.5, 999, 309, "#d8dbe0", "white"), *decoder()]
    for column, (title, paper, colour, claim, meaning) in enumerate(PANELS):
        x = 230 + column * 260
        verdict = verdicts[claim]
        item = next(item for item in verdict.items if item.outcome == verdict.outcome and item.texts)
        shapes += [text(x, 42, title, 16, colour, 'font-weight="bold"'), text(x, 62, f"after {paper}", 12, GREY)]
        shapes += (parameter_tokens, averages, cache)[column](x)
        word = outcome_text(verdict.outcome, verdict.items)
        shapes += [
            text(x, 234, f"{meaning}:", 12),
            text(x, 251, number_text(item, README_CLAIMS[claim]), 12),
            text(x, 290, item.ran, 9, GREY),
        ]
        shapes += [text(x, 274, word, 15, colour, 'font-weight="bold"')]
    style = 'font-family="Helvetica, Arial, sans-serif"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 310" {style}>\n' + "\n".join(shapes) + "\n</svg>\n"
    )


if __name__ == "__main__":
    OUTPUT.write_text(render_svg(), encoding="utf-8")
