"""The errors for a damaged file, a wrong name and a wrong step."""

import re

import pytest

import circuitkit as ck
from circuitkit import models

LIST = re.escape(str(ck.list_models()))


def test_unknown_name_lists_the_names():
    message = rf"no shipped model and no folder called 'two-layr'\. The shipped .* {LIST}\. "
    with pytest.raises(ValueError, match=message + r".*write load_model\('.*', from_hub=True"):
        ck.load_model("two-layr")
    for function in (models.model_card, models.checkpoints):
        with pytest.raises(ValueError, match=rf"no shipped model 'nonsense'\. There are {LIST}"):
            function("nonsense")


def test_wrong_step_lists_the_steps():
    steps = re.escape(str(models.checkpoints("two-layer")))
    with pytest.raises(ValueError, match=rf"no checkpoint at step 7. It has the steps {steps}"):
        ck.load_model("two-layer", step=7)
    with pytest.raises(ValueError, match="Only shipped models have checkpoints, and 'gpt2' is"):
        ck.load_model("gpt2", step=100, from_hub=True)


def replace_file(folder, file, change):
    path = folder / file
    content = path.read_bytes()
    path.unlink()
    if change is not None:
        path.write_bytes(change(content))


@pytest.mark.parametrize(
    ("file", "use"),
    [
        ("zero-layer.safetensors", lambda: ck.load_model("zero-layer")),
        ("tokenizer.json", models.load_tokenizer),
        ("heldout.jsonl", models.heldout_text),
    ],
)
def test_a_damaged_or_missing_file_is_refused(copied, file, use):
    replace_file(copied, file, lambda content: content[:100])
    with pytest.raises(ValueError, match=rf"{file} is damaged: its sha256 is \w+"):
        use()
    replace_file(copied, file, None)
    with pytest.raises(FileNotFoundError, match=file):
        use()


def test_the_hub_is_only_asked_when_the_user_writes_so(monkeypatch):
    names = []
    monkeypatch.setattr(models, "load_with_transformers", lambda name, **_: names.append(name))
    with pytest.raises(ValueError, match="no folder called 'gpt2'"):
        ck.load_model("gpt2")
    assert names == []
    with pytest.raises(AttributeError):
        ck.load_model("gpt2", from_hub=True)  # the stand-in above returns no model
    assert names == ["gpt2"]
