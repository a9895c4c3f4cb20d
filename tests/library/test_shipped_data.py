"""The shipped data files are those of the manifests, and the library refuses a changed file."""

import inspect
import shutil

import pytest

from circuitkit import _stored, circuits, conversion, induction, superposition
from circuitkit.conversion import _head_sum
from tools.check import manifest

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


@pytest.mark.parametrize("package", manifest.PACKAGES)
def test_the_manifest_has_the_hash_of_every_shipped_file(package):
    assert manifest.stored(package) == manifest.measured(package)


@pytest.mark.parametrize("package", manifest.PACKAGES)
def test_the_script_that_made_a_shipped_file_exists(package):
    for entry in manifest.stored(package).values():
        for script in entry["script"].split(", "):
            assert (manifest.ROOT / script.split()[0]).is_file(), script


def clear_caches():
    """Some readers cache what they have read."""
    survey = inspect.unwrap(induction.stored_survey, stop=lambda f: hasattr(f, "cache_clear"))
    for reader in (circuits.skip_trigram_statistics, _head_sum._fits, _head_sum._tables, survey):
        reader.cache_clear()


@pytest.mark.parametrize("name", READERS)
def test_a_changed_file_is_refused(name, tmp_path, monkeypatch):
    package = name.partition("/")[0]
    shutil.copytree(manifest.folder(package), tmp_path / package)
    monkeypatch.setattr(_stored, "HOME", tmp_path)
    clear_caches()
    READERS[name]()
    clear_caches()
    changed = tmp_path / name
    changed.write_bytes(changed.read_bytes() + b"\n")
    message = rf"{changed.name} is damaged: its sha256 is \w+, expected \w+ as recorded"
    with pytest.raises(ValueError, match=message):
        READERS[name]()
    clear_caches()
