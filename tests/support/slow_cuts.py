"""Cuts by recursion over the parts of a model, in plain torch: no code of the library, and slow.

The model is computed part by part from the weights that transformers holds. A name is replaced as its definition says.
"""

import math
from itertools import product

import torch


def weights_of(model):
    """The weights of the wrapped transformers model, under the names that transformers gives them."""
    state = model.original_model.state_dict()
    return {name.replace("_original_component.", ""): value for name, value in state.items()}


class SlowModel:
    """GPT-2, Llama or Gemma 2 with four heads in each layer."""

    def __init__(self, model, kind):
        self.kind, self.w, self.config = kind, weights_of(model), model.original_model.config
        self.norms_behind = kind == "gemma2"
        self.layer = "transformer.h.{}." if kind == "gpt2" else "model.layers.{}."
        self.parts = ["embed"] + (["pos"] if kind == "gpt2" else [])
        self.step = {name: -1 for name in self.parts}
        for layer in range(3):
            attention = [f"L{layer}H{head}" for head in range(4)]
            attention += [] if kind == "gemma2" else [f"L{layer} bias"]
            self.parts += [*attention, f"L{layer} MLP"]
            self.step |= dict.fromkeys(attention, 2 * layer) | {f"L{layer} MLP": 2 * layer + 1}
        self.step["unembed"] = 6

    def norm(self, name, x):
        """The divisor of a norm, its input before the division, and its bias."""
        gain = self.w[f"{name}.weight"] + (self.kind == "gemma2")
        bias = self.w.get(f"{name}.bias", 0)
        x = x - x.mean(-1, keepdim=True) if self.kind == "gpt2" else x
        epsilon = 1e-5 if self.kind == "gpt2" else 1e-6
        return (x.square().mean(-1, keepdim=True) + epsilon).sqrt(), x * gain, bias

    def normed(self, name, x):
        divisor, x, bias = self.norm(name, x)
        return x / divisor + bias

    def start(self, part, tokens):
        if part == "pos":
            return self.w["transformer.wpe.weight"][: tokens.shape[1]].expand(len(tokens), -1, -1)
        if self.kind == "gpt2":
            return self.w["transformer.wte.weight"][tokens]
        factor = math.sqrt(24) if self.kind == "gemma2" else 1
        return self.w["model.embed_tokens.weight"][tokens] * factor

    def norm_name(self, part):
        if part == "unembed":
            return "transformer.ln_f" if self.kind == "gpt2" else "model.norm"
        ends = {
            "gpt2": ("ln_1", "ln_2"),
            "llama": ("input_layernorm", "post_attention_layernorm"),
            "gemma2": ("input_layernorm", "pre_feedforward_layernorm"),
        }
        return self.layer.format(part[1]) + ends[self.kind][part.endswith("MLP")]

    def head_matrix(self, part, letter):
        """`[d_model, d_head]` and bias of one head; query heads share keys and values in groups."""
        layer, head = self.layer.format(part[1]), int(part[3])
        if self.kind == "gpt2":
            W, b = (self.w[f"{layer}attn.c_attn.{end}"].chunk(3, -1)["QKV".index(letter)] for end in ("weight", "bias"))  # fmt: skip
            return W[:, 6 * head : 6 * head + 6], b[6 * head : 6 * head + 6]
        size, head = 8 if self.kind == "gemma2" else 6, head if letter == "Q" else head // 2
        rows, name = slice(size * head, size * head + size), f"{layer}self_attn.{letter.lower()}_proj"  # fmt: skip
        bias = self.w.get(f"{name}.bias")
        return self.w[f"{name}.weight"][rows].T, 0 if bias is None else bias[rows]

    def head(self, part, q, k, v):
        """What a head writes if its queries, keys and values read these."""
        q, k, v = (x @ W + b for x, (W, b) in zip((q, k, v), (self.head_matrix(part, s) for s in "QKV"), strict=True))  # fmt: skip
        n_pos, size, layer = q.shape[1], q.shape[2], self.layer.format(part[1])
        if self.kind != "gpt2":
            q, k = turned(q), turned(k)
        scores = q @ k.mT / math.sqrt(10 if self.kind == "gemma2" else size)
        distance = torch.arange(n_pos)[:, None] - torch.arange(n_pos)
        hidden = distance < 0
        if self.kind == "gemma2":
            scores = 5 * torch.tanh(scores / 5)
            hidden = hidden | (distance >= 5) if part[1] in "02" else hidden
        z = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
        rows = slice(size * int(part[3]), size * int(part[3]) + size)
        if self.kind == "gpt2":
            return z @ self.w[f"{layer}attn.c_proj.weight"][rows]
        return z @ self.w[f"{layer}self_attn.o_proj.weight"].T[rows]

    def mlp(self, part, x):
        layer = self.layer.format(part[1]) + "mlp."
        if self.kind == "gpt2":
            x = tanh_gelu(x @ self.w[f"{layer}c_fc.weight"] + self.w[f"{layer}c_fc.bias"])
            return x @ self.w[f"{layer}c_proj.weight"] + self.w[f"{layer}c_proj.bias"]
        gate, up = (x @ self.w[f"{layer}{name}_proj.weight"].T for name in ("gate", "up"))
        gate = tanh_gelu(gate) if self.kind == "gemma2" else gate * torch.sigmoid(gate)
        return gate * up @ self.w[f"{layer}down_proj.weight"].T

    def bias(self, part, like):
        name = "attn.c_proj" if self.kind == "gpt2" else "self_attn.o_proj"
        return self.w[self.layer.format(part[1]) + f"{name}.bias"].expand_as(like)

    def logits(self, x):
        if self.kind == "gpt2":
            return x @ self.w["transformer.wte.weight"].T
        logits = x @ self.w["lm_head.weight"].T
        return 8 * torch.tanh(logits / 8) if self.kind == "gemma2" else logits


def tanh_gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def turned(x):
    half = x.shape[-1] // 2
    speed = 10000.0 ** -(torch.arange(half, dtype=x.dtype) / half)
    angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * speed
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def split_input(text):
    """`("L0H1", "K")` for an input of a head; an MLP and the unembedding have one input, `""`."""
    part, _, side = text.partition(".")
    return [(part, letter) for letter in (side or "QKV")] if "H" in part else [(part, "")]


class SlowRun:
    """One run; `extra` is what the inputs of a part miss beyond the names of the run."""

    def __init__(self, model, tokens, names=(), fill="zero", source=None, at=None):
        self.model, self.tokens, self.fill, self.source = model, tokens, fill, source
        self.at = range(tokens.shape[1]) if at is None else at
        self.known, self.ablated, self.chains = {}, set(), set()
        for name in names:
            first, *rest = name.split("->")
            if not rest and "." not in first:
                self.ablated.add(first)
            elif not rest:
                self.chains |= {(entry,) for entry in split_input(first)}
            else:
                entries = product(*(split_input(text) for text in rest))
                self.chains |= {((first, ""), *chain) for chain in entries}
        # what an ablated part hands over has been replaced already, at the same positions
        self.chains = {c for c in self.chains if len(c) == 1 or c[0][0] not in self.ablated}

    def replaced(self, now, read):
        new = torch.zeros_like(now) if self.source is None else read(self.source)
        new = new.mean(0, keepdim=True).expand_as(new) if self.fill == "mean" else new
        new = torch.cat([new[-1:], new[:-1]]) if self.fill == "resample" else new
        result = now.clone()
        for position in self.at:
            result[:, position] = new[:, position]
        return result

    def written(self, part, extra=frozenset()):
        """What a part writes, before a norm behind its layer."""
        if (part, extra) not in self.known:
            self.known[part, extra] = self.compute(part, extra)
        return self.known[part, extra]

    def compute(self, part, extra):
        if part in ("embed", "pos"):
            value = self.model.start(part, self.tokens)
        elif "H" in part:
            value = self.model.head(part, *(self.read(part, side, extra) for side in "QKV"))
        elif part.endswith("MLP"):
            value = self.model.mlp(part, self.read(part, "", extra))
        else:
            value = self.model.bias(part, self.written("embed"))
            if self.source is not None:
                return value  # the same in every run
        return self.replaced(value, lambda run: run.written(part)) if part in self.ablated else value  # fmt: skip

    def share(self, part, extra=frozenset()):
        """What a part leaves in the stream; what it writes may count in the divisor of the norm behind it."""
        value = self.written(part, extra)
        if not self.model.norms_behind or part == "embed":
            return value
        same_sum = [p for p in self.model.parts if self.model.step[p] == self.model.step[part]]
        total = sum(self.written(p) for p in same_sum) - self.written(part) + value
        end = "feedforward" if part.endswith("MLP") else "attention"
        name = f"model.layers.{part[1]}.post_{end}_layernorm"
        divisor, _, _ = self.model.norm(name, total)
        return self.model.norm(name, value)[1] / divisor

    def stream(self, part):
        before = [p for p in self.model.parts if self.model.step[p] < self.model.step[part]]
        return sum(self.share(p) for p in before)

    def read(self, part, side, extra=frozenset()):
        """What an input reads: first what paths hand over, then wires, then the whole input."""
        missed = {chain[:-1] for chain in self.chains | extra if chain[-1] == (part, side)}
        stream = self.stream(part)
        for writer in {chain[-1][0] for chain in missed if chain}:
            paths = frozenset(c for c in missed if len(c) > 1 and c[-1][0] == writer)
            now = self.share(writer, paths)
            is_same_bias = writer.endswith("bias") and self.source is not None
            if ((writer, ""),) in missed and not is_same_bias:
                now = self.replaced(now, lambda run, w=writer: run.share(w))
            stream = stream - self.share(writer) + now
        if () in missed:
            stream = self.replaced(stream, lambda run: run.stream(part))
        return self.model.normed(self.model.norm_name(part), stream)

    def logits(self):
        return self.model.logits(self.read("unembed", ""))
