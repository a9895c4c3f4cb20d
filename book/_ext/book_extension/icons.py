"""Keep the icons that the pages show: the theme brings two thousand, in a script and in three fonts."""

import logging
import re
from pathlib import Path

from fontTools import subset

from . import theme

logging.getLogger("fontTools").setLevel(logging.ERROR)

PRIVATE = re.compile(r"\\([ef][0-9a-f]{3})\b|([\ue000-\uf8ff])")


def characters_of(css: str) -> set[int]:
    """The characters that the icons of a style sheet draw."""
    return {int(escaped, 16) if escaped else ord(plain) for escaped, plain in PRIVATE.findall(css)}


def as_woff(css: str) -> str:
    """The style sheet with one format for each icon font: the fonts are small, and every browser reads it."""
    return theme.ICON_FONTS.sub(r'url(\1.woff) format("woff")', css, "The style sheet")


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
