"""What ships is what its manifest says, in every room, and a changed file is refused by every reader."""

import inspect
import shutil

import pytest

from circuitkit import _stored, circuits, conversion, induction, superposition
from circuitkit.conversion import _head_sum
from tools.study import manifest

ROOMS = ("circuits", "conversion", "induction", "superposition")
READERS = {
    "circuits/skip_trigrams.safetensors": circuits.skip_trigram_statistics,
    "conversion/activations.json": _head_sum._fits,
    "conversion/gates.safetensors": lambda: _head_sum._tables("silu"),
    "conversion/whisper.json": lambda: conversion.stored_study("whisper"),
    "induction/smollm2-135m.json": induction.stored_survey,
    "superposition/originals.safetensors": lambda: superposition.load_original(4, 5, 0),
    "superposition/block.safetensors": superposition.load_gated,
    "superposition/recipes.csv": lambda: superposition.load_results("recipes"),
}


@pytest.mark.parametrize("room", ROOMS)
def test_every_manifest_is_what_its_command_writes(room):
    assert (manifest.ROOMS / room / "data/manifest.json").read_text("utf-8") == manifest.manifest(
        room
    )


def test_a_file_that_no_script_makes_is_told(tmp_path, monkeypatch):
    shutil.copytree(manifest.ROOMS / "induction/data", tmp_path / "induction/data")
    (tmp_path / "induction/data/other.json").write_text("{}")
    monkeypatch.setattr(manifest, "ROOMS", tmp_path)
    with pytest.raises(SystemExit, match=r"\['other.json'\]; say in tools/study/manifest.py"):
        manifest.manifest("induction")


def forget():
    """What was read is kept by some readers."""
    kept = (
        circuits.skip_trigram_statistics,
        _head_sum._fits,
        _head_sum._tables,
        inspect.unwrap(induction.stored_survey, stop=lambda f: hasattr(f, "cache_clear")),
    )
    for reader in kept:
        reader.cache_clear()


@pytest.mark.parametrize("name", READERS)
def test_a_changed_file_is_refused(name, tmp_path, monkeypatch):
    room, _, file = name.partition("/")
    shutil.copytree(manifest.ROOMS / room / "data", tmp_path / room / "data")
    monkeypatch.setattr(_stored, "HOME", tmp_path)
    forget()
    READERS[name]()
    forget()
    with (tmp_path / room / "data" / file).open("ab") as changed:
        changed.write(b"\n")
    with pytest.raises(
        ValueError, match=rf"{file} is damaged: its sha256 is \w+, expected \w+ as recorded"
    ):
        READERS[name]()
