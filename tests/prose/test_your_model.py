"""The page about one's own model: its lines run one after the other, in a folder of their own, and show what it says."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "book/your-model.md").read_text("utf-8")


@pytest.mark.filterwarnings("ignore")
def test_the_lines_run_in_the_order_of_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    room: dict = {}
    for cell in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(compile(cell, "a cell", "exec"), room)
    assert room["score"] > 0
    assert room["mine"].values.isfinite().all()
    assert not room["report"].problems
    assert room["effect"].values.shape == (4, 4)  # one head of three has two others of its layer
    assert room["layer"].block.names == ("L1H0", "L1H2")
    assert not room["logits"].equal(room["model"](room["rows"].tokens))
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "mine",
        "mine.csv",
        "mine.html",
        "mine.parts",
    ]
    assert "numbers" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")
def test_what_it_says_of_the_first_token(tmp_path):
    """Which families have one in front, as transformer-lens sets it."""
    import tiny_models
    import transformers

    def first(kind, **sizes):
        config = getattr(transformers, f"{kind}Config")(
            **sizes, bos_token_id=0, eos_token_id=0, architectures=[f"{kind}ForCausalLM"]
        )
        model = tiny_models.from_folder(
            tmp_path / kind, getattr(transformers, f"{kind}ForCausalLM")(config)
        )
        return int(model.to_tokens("In the beginning")[0, 0]) == 0

    sizes = tiny_models.HUGGING_FACE | {"vocab_size": 4096}
    found = {kind: first(kind, **sizes) for kind in ("Llama", "Qwen2", "GPTNeoX", "Phi")}
    found["Gemma"] = first("Gemma", **sizes, head_dim=8, num_key_value_heads=3, pad_token_id=0)
    assert found == {"Llama": True, "Gemma": True, "Qwen2": False, "GPTNeoX": False, "Phi": False}
    said = " ".join(PAGE.split())
    assert (
        "a Llama and a Gemma have one in front, a Qwen2, a NeoX or a Phi has none unless you ask by `prepend_bos=True`"
        in said
    )
