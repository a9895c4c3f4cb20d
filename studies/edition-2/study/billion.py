"""A random model of a billion parameters through the weight tools: what each takes, in seconds and in memory beside the weights.

    python -m tools billion [--layers 16]
    python -m tools billion --one-by-one    its layers from safetensors, one at a time; limit: one layer and 2 GB in all

The shape is that of Llama 3.2 1B in bfloat16: 2048 dimensions, 32 heads a layer on 8 keys, SwiGLU of 8192 neurons, 128,256
tokens. Nothing is fetched: the numbers are random, and what is measured is room and time. Limit: 2 GB beside the weights.
"""

import argparse
import multiprocessing
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

SHAPE = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    "vocab_size": 128_256, "max_position_embeddings": 4096, "tie_word_embeddings": True,
}  # fmt: skip


def kib(name: str) -> int:
    """A line of what the kernel says about this process, in KiB."""
    return int(Path("/proc/self/status").read_text("ascii").split(f"{name}:")[1].split()[0])


def measured(what: str, work, weights: int, beside: str = "beside the weights"):
    """Run it; print processor seconds and the most that was taken beside the weights."""
    Path("/proc/self/clear_refs").write_text("5")  # the highest mark begins anew
    start = time.process_time()
    result = work()
    taken, most = time.process_time() - start, kib("VmHWM") - weights
    print(f"{what:<24}{taken:>8.1f} s{most / 2**20:>8.2f} GiB {beside}", flush=True)
    return result, most


def stored_layers(folder: Path, layers: int) -> None:
    """A model of so many layers on the disk, in a file a layer: made from one layer at a time, its numbers drawn anew."""
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    import circuitkit as ck

    torch.set_default_dtype(torch.bfloat16)
    one = LlamaForCausalLM(LlamaConfig(**SHAPE, num_hidden_layers=1))
    torch.set_default_dtype(torch.float32)
    for layer in range(layers):
        state = {name.replace("layers.0.", f"layers.{layer}."): W for name, W in one.state_dict().items() if "layers.0." in name or layer == 0}
        save_file({name: W for name, W in state.items() if name != "lm_head.weight"}, folder / f"{layer:03}.safetensors", {"format": "pt"})
        for W in one.model.layers[0].parameters():
            W.data.normal_(0, 0.02)
    LlamaConfig(**SHAPE, architectures=["LlamaForCausalLM"], num_hidden_layers=layers, dtype="bfloat16").save_pretrained(folder)
    ck.models.load_tokenizer().save_pretrained(folder)


@torch.no_grad()
def one_by_one(layers: int) -> None:
    """What heads of each layer copy, and what those of the first layer and of the one before write for it."""
    import circuitkit as ck

    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn").Process(target=stored_layers, args=(Path(folder), layers))
        context.start()
        context.join()
        size = (Path(folder) / "001.safetensors").stat().st_size
        kept: list = []

        def work(layer: int) -> None:
            model = ck.load_model(folder, layers=[layer])
            heads = ck.heads(model)
            heads = replace(heads, names=tuple(name.replace("L0", f"L{layer}") for name in heads.names), layers=(layer,) * len(heads))
            ck.circuits.copying_score(heads)
            for earlier in kept:
                ck.circuits.composition_scores(earlier, heads, "K")
                ck.residual.subspace_overlap(earlier, heads, "K")
                ck.residual.principal_cosines(earlier[:4], heads[:4], "K")
            kept[1 if kept else 0 :] = [heads]

        most = [measured(f"layer {layer}", lambda layer=layer: work(layer), 0, "in all")[1] for layer in range(layers)]
    print(f"a layer has {size / 2**30:.2f} GiB; most in all: {max(most) / 2**20:.2f} GiB, {max(most) / 2**20 - size / 2**30:.2f} beside one layer")


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--one-by-one", action="store_true")
    given = parser.parse_args()
    layers = given.layers
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if given.one_by_one:
        one_by_one(layers)
        return
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import LlamaConfig, LlamaForCausalLM

    import circuitkit as ck

    torch.set_default_dtype(torch.bfloat16)
    config = LlamaConfig(**SHAPE, architectures=["LlamaForCausalLM"], num_hidden_layers=layers, attn_implementation="eager")
    plain = LlamaForCausalLM(config).eval().requires_grad_(False)
    torch.set_default_dtype(torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        model = TransformerBridge.boot_transformers(folder, hf_model=plain, dtype=torch.bfloat16, tokenizer=ck.models.load_tokenizer()).eval()
    n = sum(p.numel() for p in {id(p): p for p in plain.parameters()}.values())
    weights = kib("VmRSS")
    print(f"{n / 1e9:.2f} billion parameters, {2 * n / 2**30:.2f} GiB; the process holds {weights / 2**20:.2f} GiB")
    found = {}
    value, found["anatomy"] = measured("anatomy", lambda: ck.anatomy(model), weights)
    last = layers - 1
    writer, reader = "L0H1", f"L{last}H5.K"
    _, found["virtual weights"] = measured("virtual_weights", lambda: ck.residual.virtual_weights(model, writer, reader), weights)
    heads, found["heads"] = measured("heads", lambda: ck.heads(model), weights)
    _, found["copying"] = measured("copying_score", lambda: ck.circuits.copying_score(heads), weights)
    _, found["overlap"] = measured("subspace_overlap", lambda: ck.residual.subspace_overlap(heads, heads, "K"), weights)
    _, found["composition"] = measured("composition_scores", lambda: ck.circuits.composition_scores(heads, heads, "K"), weights)
    names = ("W_in", "W_out", "W_gate")
    inside = next(sub.inside for sub in value.sublayers if sub.name == "L0 MLP")
    one = {name: getattr(inside, name) for name in names}
    del heads
    convert = lambda: ck.conversion.gated_neuron_heads(**one, activation="silu", heads_per_neuron=8, gate_range=8.0)  # noqa: E731
    _, found["conversion"] = measured("one layer converted", convert, weights)
    print(f"most beside the weights: {max(found.values()) / 2**20:.2f} GiB ({max(found, key=lambda key: found[key])})")


if __name__ == "__main__":
    main()
