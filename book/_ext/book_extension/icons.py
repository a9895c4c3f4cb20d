"""Keep the icons that the pages show: the theme brings two thousand, in a script and in three fonts."""

import logging
import re
from pathlib import Path

from fontTools import subset

logging.getLogger("fontTools").setLevel(logging.ERROR)

RULE = re.compile(r'((?:\.fa-[\w-]+:before,?)+)\{content:"(\\?[^"]+)"\}')
PRIVATE = re.compile(r"\\([ef][0-9a-f]{3})\b|([\ue000-\uf8ff])")


def trim(css: str, used: set[str]) -> tuple[str, set[int]]:
    """The style sheet without the rules of unused icons, and the characters that the rest draws."""

    def keep(found):
        return found[0] if used & set(re.findall(r"\.(fa-[\w-]+):before", found[1])) else ""

    css = RULE.sub(keep, css)
    characters = {
        int(escaped, 16) if escaped else ord(plain) for escaped, plain in PRIVATE.findall(css)
    }
    # The fonts are small now, so one format that every browser reads is enough.
    css = re.sub(
        r'url\(([^)]*/fa-[\w-]+)\.woff2\) format\("woff2"\),url\([^)]*\.ttf\) format\("truetype"\)',
        as_woff,
        css,
    )
    return css, characters


def as_woff(found) -> str:
    return f'url({found[1]}.woff) format("woff")'


def shrink(fonts: Path, characters: set[int]) -> None:
    """Replace each icon font of a folder with one that holds these characters only."""
    for path in sorted(fonts.glob("fa-*.ttf")):
        options = subset.Options(flavor="woff", notdef_outline=True, desubroutinize=True)
        options.recalc_timestamp = False
        font = subset.load_font(path, options)
        subsetter = subset.Subsetter(options)
        subsetter.populate(unicodes=characters)
        subsetter.subset(font)
        subset.save_font(font, path.with_suffix(".woff"), options)
        path.unlink()
        path.with_suffix(".woff2").unlink(missing_ok=True)


def used_in(texts) -> set[str]:
    return {name for text in texts for name in re.findall(r"\bfa-[\w-]+", text)}
