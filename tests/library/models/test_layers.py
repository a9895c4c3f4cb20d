"""`load_model(folder, layers=...)`: some layers of a model that lies in safetensors, and nothing else of it is read."""

import pytest
import safetensors
import torch

import circuitkit as ck


def saved(folder, kind, **more):
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    ends = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 0}
    if kind == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(n_embd=12, n_layer=4, n_head=2, n_positions=8, **ends))
    else:
        sizes = {
            "hidden_size": 16,
            "intermediate_size": 20,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_hidden_layers": 4,
            "max_position_embeddings": 16,
        }
        model = LlamaForCausalLM(LlamaConfig(**sizes, **ends, **more))
    model.save_pretrained(folder, max_shard_size="5KB")  # several files, as a large model has
    ck.models.load_tokenizer().save_pretrained(folder)
    return model.eval()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("gpt2", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"tie_word_embeddings": False}),
    ],
)
def test_a_layer_is_that_of_the_whole_model(tmp_path, kind, more):
    plain = saved(tmp_path, kind, **more)
    assert len([*tmp_path.glob("*.safetensors")]) > 1
    whole = ck.heads(ck.load_model(str(tmp_path)))
    for layers in [3], [0, 2], [2, 1]:
        found = ck.heads(ck.load_model(str(tmp_path), layers=layers))
        some = whole[
            [name for layer in layers for name in whole.names if name.startswith(f"L{layer}H")]
        ]
        assert len(found) == len(some) == len(layers) * (2 if kind == "gpt2" else 4)
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            torch.testing.assert_close(getattr(found, name), getattr(some, name))
    tokens, blocks = (
        torch.tensor([[0, 7, 3, 7]]),
        plain.transformer.h if kind == "gpt2" else plain.model.layers,
    )
    kept = [blocks[2], blocks[1]]
    while len(blocks):
        del blocks[0]
    blocks.extend(kept)
    plain.config.num_hidden_layers = 2
    ours = ck.load_model(str(tmp_path), layers=[2, 1])
    torch.testing.assert_close(
        ours(tokens), plain(tokens, use_cache=False).logits, atol=1e-5, rtol=1e-5
    )


@pytest.mark.filterwarnings("ignore")
def test_nothing_else_is_read_and_half_precision_stays(tmp_path, monkeypatch):
    saved(tmp_path, "llama").bfloat16().save_pretrained(tmp_path, max_shard_size="5KB")
    read, own = [], safetensors.safe_open

    class Watched:
        def __init__(self, *args, **kwargs):
            self.file = own(*args, **kwargs)

        def __enter__(self):
            self.inside = self.file.__enter__()
            return self

        def __exit__(self, *args):
            return self.file.__exit__(*args)

        def keys(self):
            return self.inside.keys()

        def get_tensor(self, name):
            read.append(name)
            return self.inside.get_tensor(name)

    monkeypatch.setattr(safetensors, "safe_open", Watched)
    model = ck.load_model(str(tmp_path), layers=[1])
    numbers = {part for name in read for part in name.split(".") if part.isdigit()}
    assert numbers == {"1"}
    assert ck.heads(model).W_Q.dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_read_is_said(tmp_path):
    saved(tmp_path, "gpt2")
    with pytest.raises(ValueError, match=r"layers=\(4,\); expected numbers below 4"):
        ck.load_model(str(tmp_path), layers=[4])
    with pytest.raises(
        ValueError, match="left out, or numbers of layers, each once, of a model in a folder"
    ):
        ck.load_model("two-layer", layers=[0])
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(FileNotFoundError, match="there is no .safetensors file in"):
        ck.load_model(str(tmp_path), layers=[0])
