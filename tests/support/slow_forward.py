"""A forward pass in plain loops over a native bridge's state dictionary, with parts and wires taken out.

Shares no code with the library: one head and one position at a time, norms and rotations written out here.
"""

import math

import torch
import torch.nn.functional as F


def layer_norm(x, state, name, eps=1e-5):
    if f"{name}.weight" not in state:
        return x
    centred = x - x.mean()
    return (
        centred / (centred.pow(2).mean() + eps).sqrt() * state[f"{name}.weight"]
        + state[f"{name}.bias"]
    )


def rotated(row, pos):
    """Neighbouring dimensions turned as the real and imaginary part of a number."""
    d = len(row)
    speed = 1.0 / (10000.0 ** (torch.arange(0, d, 2).float() / d))
    angle = (torch.tensor(float(pos)) * speed).double()
    number = torch.complex(row[0::2], row[1::2]) * torch.complex(
        angle.float().cos().double(), angle.float().sin().double()
    )
    return torch.stack([number.real, number.imag], -1).flatten()


def forward(model, tokens, cut=(), gone=(), instead=None):
    """Logits and parts `{name: [pos, d_model]}` of one row; `cut` holds (source, reader, kind), `gone` names of parts.

    `instead` holds what a reader finds in place of a part: `{(source, reader, kind): [pos, d_model]}`.
    """
    instead = instead or {}
    state = {name: value.double() for name, value in model.state_dict().items()}
    cfg, cut = model.cfg, set(cut)
    n_groups = cfg.n_key_value_heads or cfg.n_heads
    parts = {"embed": state["embed.weight"][tokens]}
    if "pos_embed.weight" in state:
        parts["pos"] = state["pos_embed.weight"][: len(tokens)]
    parts = {
        name: torch.zeros_like(value) if name in gone else value for name, value in parts.items()
    }

    def stream(reader, kind):
        whole = torch.zeros(len(tokens), cfg.d_model, dtype=torch.float64)
        return whole + sum(
            instead.get((name, reader, kind), value)
            for name, value in parts.items()
            if (name, reader, kind) not in cut
        )

    def linear(name, x, rows=slice(None)):
        return x @ state[f"{name}.weight"][rows].T + state[f"{name}.bias"][rows]

    for layer in range(cfg.n_layers):
        at, new = f"blocks.{layer}", {}
        for h in range(cfg.n_heads):
            name, d = f"L{layer}H{h}", cfg.d_head
            group = h // (cfg.n_heads // n_groups)
            q, k, v = (
                torch.stack(
                    [
                        linear(
                            f"{at}.attn.{kind.lower()}",
                            layer_norm(row, state, f"{at}.ln1"),
                            slice(g * d, g * d + d),
                        )
                        for row in stream(name, kind)
                    ]
                )
                for kind, g in (("Q", h), ("K", group), ("V", group))
            )
            if "pos_embed.weight" not in state:
                q, k = (
                    torch.stack([rotated(row, pos) for pos, row in enumerate(side)])
                    for side in (q, k)
                )
            out = torch.zeros(len(tokens), cfg.d_model, dtype=torch.float64)
            for dst in range(len(tokens)):
                scores = torch.stack([q[dst] @ k[src] / math.sqrt(d) for src in range(dst + 1)])
                for src, weight in enumerate(scores.exp() / scores.exp().sum()):
                    out[dst] += weight * (
                        v[src] @ state[f"{at}.attn.o.weight"][:, h * d : h * d + d].T
                    )
            new[name] = torch.zeros_like(out) if name in gone else out
        bias = state[f"{at}.attn.o.bias"].expand(len(tokens), -1)
        new[f"L{layer} bias"] = torch.zeros_like(bias) if f"L{layer} bias" in gone else bias
        parts |= new
        if f"{at}.mlp.in.weight" in state:
            name = f"L{layer} MLP"
            rows = [layer_norm(row, state, f"{at}.ln2") for row in stream(name, "")]
            out = torch.stack(
                [linear(f"{at}.mlp.out", F.gelu(linear(f"{at}.mlp.in", row))) for row in rows]
            )
            parts[name] = torch.zeros_like(out) if name in gone else out
    final = torch.stack([layer_norm(row, state, "ln_final") for row in stream("unembed", "")])
    return final @ state["unembed.weight"].T + state.get("unembed.bias", 0), parts
