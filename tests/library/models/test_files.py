"""What ships: names, files, hashes, sizes, and what the manifest says about itself."""

from circuitkit.models import checkpoints, model_card


def files(manifest):
    """Every entry of the manifest that names a file."""
    yield from (manifest[what] for what in ("tokenizer", "heldout", "statistics"))
    for model in manifest["models"].values():
        yield from model["files"].values()


def test_every_hash(manifest, data, sha256):
    for entry in files(manifest):
        assert sha256(data / entry["file"]) == entry["sha256"], entry["file"]


def test_nothing_else_ships(manifest, data):
    named = {entry["file"] for entry in files(manifest)} | {
        "manifest.json",
        "corpus-provenance.json",
    }
    assert {path.name for path in data.iterdir()} == named


def test_every_file_can_be_read_by_everybody(data):
    """A wheel keeps permissions; a file only its owner may read breaks an installation for all others."""
    closed = [path.name for path in data.iterdir() if path.stat().st_mode & 0o444 != 0o444]
    assert closed == []


def test_cards_and_checkpoints(name, manifest):
    card, steps = model_card(name), checkpoints(name)
    assert card == manifest["models"][name] | {key: card[key] for key in ("baselines", "corpus")}
    assert [str(step) for step in sorted(steps)] == list(card["files"])
    assert card["files"][str(steps[-1])]["file"] == f"{name}.safetensors"  # the last is the model
    assert steps[-1] == card["training"]["steps"]
