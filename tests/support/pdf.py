"""The text of a PDF file that Chromium has printed."""

import re
import zlib


def unpacked(pdf: bytes) -> list[str]:
    """The streams of the file that can be unpacked."""
    found = []
    for packed in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.S):
        try:
            found.append(zlib.decompress(packed).decode("latin-1"))
        except zlib.error:  # a picture
            continue
    return found


def letters(table: str) -> dict[int, str]:
    """The letter of each glyph, from the table of one font."""
    found = {}
    for block in re.findall(r"beginbfchar(.*?)endbfchar", table, re.S):
        for glyph, letter in re.findall(r"<(\w+)>\s*<(\w+)>", block):
            found[int(glyph, 16)] = bytes.fromhex(letter).decode("utf-16-be")
    for block in re.findall(r"beginbfrange(.*?)endbfrange", table, re.S):
        for first, last, letter in re.findall(r"<(\w+)>\s*<(\w+)>\s*<(\w+)>", block):
            for glyph in range(int(first, 16), int(last, 16) + 1):
                found[glyph] = chr(int(letter, 16) + glyph - int(first, 16))
    return found


def lines(pdf: bytes) -> list[str]:
    """What each piece of text says, once for every font of the file, because a piece does not name its font."""
    streams = unpacked(pdf)
    fonts = [letters(stream) for stream in streams if "beginbf" in stream]
    pieces = [piece for stream in streams for piece in re.findall(r"<(\w+)> Tj", stream)]
    glyphs = [[int(piece[at : at + 4], 16) for at in range(0, len(piece), 4)] for piece in pieces]
    return ["".join(font.get(one, "?") for one in piece) for piece in glyphs for font in fonts]
