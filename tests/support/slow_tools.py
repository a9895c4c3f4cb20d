"""Any tiny model in plain loops, for the table of tools and models: read from its own weights, run head by head.

Shares no code with the library. A model is read from its state dictionary (a toy model from its tensors) into `Slow`;
`Slow.run` goes through one row of tokens, head by head, and keeps every part, score, pattern and norm.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import torch


@dataclass
class Norm:
    gain: torch.Tensor
    bias: torch.Tensor | None
    eps: float
    centre: bool

    def middle(self, x):
        return x - x.mean(-1, keepdim=True) if self.centre else x

    def scale(self, x):
        return (self.middle(x).pow(2).mean(-1, keepdim=True) + self.eps).sqrt()

    def linear(self, x, scale):
        return self.middle(x) / scale * self.gain

    def __call__(self, x):
        out = self.linear(x, self.scale(x))
        return out if self.bias is None else out + self.bias

    def folded(self, W):
        W = self.gain[:, None] * W
        return W - W.mean(0, keepdim=True) if self.centre else W


@dataclass
class Head:
    W_Q: torch.Tensor
    W_K: torch.Tensor
    W_V: torch.Tensor
    W_O: torch.Tensor
    b_Q: torch.Tensor
    b_K: torch.Tensor
    b_V: torch.Tensor
    scale: float
    turned: object = None
    """(row vector, position) to row vector."""
    gate: object = None
    """What it reads to `[dst, src]`."""

    def turn(self, rows, kind):
        if self.turned is None or kind == "V":
            return rows
        return torch.stack([self.turned(row, pos) for pos, row in enumerate(rows)])


@dataclass
class MLP:
    W_in: torch.Tensor
    W_out: torch.Tensor
    b_in: torch.Tensor
    b_out: torch.Tensor
    act: object
    W_gate: torch.Tensor | None = None
    b_gate: torch.Tensor | float = 0.0
    terms: Callable | None = None
    """Of a converted MLP: (b, c, a, d) of every head of a neuron."""

    def reads(self, x):
        value = x @ self.W_in + self.b_in
        return (value if self.W_gate is None else x @ self.W_gate + self.b_gate), value

    def __call__(self, x):
        gate, value = self.reads(x)
        return (self.act(gate) * (1.0 if self.W_gate is None else value)) @ self.W_out + self.b_out


@dataclass
class Layer:
    heads: list
    norm: Norm | None
    bias: torch.Tensor
    mlp: MLP | None = None
    mlp_norm: Norm | None = None
    parallel: bool = False


@dataclass
class Run:
    """One row: `parts[name][pos, d_model]`, scores and patterns by head, streams and norm scales by what reads them."""

    model: "Slow"
    tokens: torch.Tensor
    parts: dict = field(default_factory=dict)
    scores: dict = field(default_factory=dict)
    patterns: dict = field(default_factory=dict)
    values: dict = field(default_factory=dict)
    streams: dict = field(default_factory=dict)
    scales: dict = field(default_factory=dict)
    logits: torch.Tensor | None = None

    def part(self, name):
        """A part, or the sum of those that a name such as `L0 MLP` or `L0N3` stands for."""
        if name in self.parts:
            return self.parts[name]
        inside = [n for n in self.parts if stands_for(name, n)]
        if not inside:
            raise AssertionError(f"no part of this model is called {name!r}")
        return sum(self.parts[n] for n in inside)

    def through(self, head, x):
        """What a head with its pattern frozen writes of a share of the stream."""
        layer, h = place(head)
        one, norm = self.model.layers[layer].heads[h], self.model.layers[layer].norm
        x = x if norm is None else norm.linear(x, self.scales[f"L{layer}"])
        return self.patterns[head] @ (x @ one.W_V) @ one.W_O

    def unembedded(self, x):
        final = self.model.final
        return (x if final is None else final.linear(x, self.scales["unembed"])) @ self.model.W_U

    @property
    def direct(self):
        return sum(self.parts[name] for name in ("embed", "pos") if name in self.parts)

    def path(self, name):
        """The logits of a path: where it begins, then head after head."""
        first, *later = name.split("->")
        if re.fullmatch(r"L\d+H\d+", first):
            first, later = "direct", [first, *later]
        x = self.direct if first == "direct" else self.part(first)
        for head in later:
            x = self.through(head, x)
        return self.unembedded(x)

    def orders(self):
        """The stream split by how many heads a share passed, and what biases add; every MLP begins a share."""
        shares, bias = {0: self.direct}, torch.zeros_like(self.direct)
        for number, layer in enumerate(self.model.layers):
            new, constant = {}, torch.zeros_like(bias)
            for h, head in enumerate(layer.heads):
                name = f"L{number}H{h}"
                for order, x in shares.items():
                    new[order + 1] = new.get(order + 1, 0) + self.through(name, x)
                shift = (
                    head.b_V
                    if layer.norm is None or layer.norm.bias is None
                    else head.b_V + layer.norm.bias @ head.W_V
                )
                fixed = self.patterns[name] @ shift.expand(len(self.tokens), -1) @ head.W_O
                constant = constant + fixed + self.through(name, bias)
            bias = bias + constant + layer.bias
            for order, x in new.items():
                shares[order] = shares.get(order, 0) + x
            for name, value in self.parts.items():
                # the output bias of a converted MLP is a part of what that MLP writes
                if re.match(rf"L{number}( MLP|N)", name):
                    shares[0] = shares[0] + value
        return shares, bias

    def constant_logits(self, bias):
        final = self.model.final
        fixed = 0 if final is None or final.bias is None else final.bias @ self.model.W_U
        return self.unembedded(bias) + fixed + self.model.b_U


def place(head):
    return tuple(int(n) for n in re.fullmatch(r"L(\d+)H(\d+)", head).groups())


def stands_for(name, part):
    """Whether a part is one of those that a name covers."""
    if name == part:
        return True
    if re.fullmatch(r"L\d+ MLP", name):
        return part.startswith((name.replace(" MLP", "N"), f"{name} bias"))
    return bool(re.fullmatch(r"L\d+N\d+", name)) and part.startswith(f"{name}.")


def step(name):
    """When a part writes and from when on it can be read: (layer, 0 for heads and biases, 1 for an MLP)."""
    if not name.startswith("L"):
        return (-1, 0)
    return int(re.match(r"L(\d+)", name)[1]), int(bool(re.match(r"L\d+( MLP|N)", name)))


@dataclass
class Slow:
    W_E: torch.Tensor
    W_pos: torch.Tensor | None
    layers: list
    final: Norm | None
    W_U: torch.Tensor
    b_U: torch.Tensor
    parallel: bool = False

    @property
    def heads(self):
        return {
            f"L{n}H{h}": head
            for n, layer in enumerate(self.layers)
            for h, head in enumerate(layer.heads)
        }

    @property
    def neurons(self):
        """Every neuron-head: its MLP, its neuron, its term."""
        out = {}
        for n, layer in enumerate(self.layers):
            if layer.mlp is not None and layer.mlp.terms:
                k = len(layer.mlp.terms(0))
                for neuron in range(layer.mlp.W_in.shape[1]):
                    for i, term in enumerate(layer.mlp.terms(neuron)):
                        out[f"L{n}N{neuron}" + (f".{i}" if k > 1 else "")] = (layer, neuron, term)
        return out

    def before(self, writer, reader):
        """Whether a part is written before another part, or the unembedding, reads."""
        if reader == "unembed":
            return True
        a, b = step(writer), step(reader)
        return a[0] < b[0] if self.parallel else a < b

    @torch.no_grad()
    def run(self, tokens, gone=(), cut=(), instead=None, given=None, read=None):
        """One row; `gone` names parts, `cut` holds (source, reader, kind), `instead(layer, read)` writes for attention.

        `given[part]` is what that part writes; `read[source, reader, kind]` what a reader has from a source, or for the
        source `None` all that it reads.
        """
        given, instead_of = given or {}, read or {}
        now, n = Run(self, tokens), len(tokens)
        parts = now.parts
        lost = lambda name: any(stands_for(g, name) for g in gone)  # noqa: E731

        def put(name, value):
            parts[name] = given.get(name, torch.zeros_like(value) if lost(name) else value)

        put("embed", self.W_E[tokens])
        if self.W_pos is not None:
            put("pos", self.W_pos[:n])

        def stream(reader, kind, known):
            if (None, reader, kind) in instead_of:
                return instead_of[None, reader, kind]
            out = torch.zeros(n, self.W_E.shape[1], dtype=self.W_E.dtype)
            for name in known:
                if not any(stands_for(s, name) and (r, k) == (reader, kind) for s, r, k in cut):
                    out = out + instead_of.get((name, reader, kind), parts[name])
            return out

        for number, layer in enumerate(self.layers):
            known, written = list(parts), {}
            whole = stream(None, None, known)
            now.streams[f"L{number}"] = whole
            now.scales[f"L{number}"] = None if layer.norm is None else layer.norm.scale(whole)
            for h, head in enumerate(layer.heads):
                name = f"L{number}H{h}"
                sides = {}
                for kind in "QKV":
                    x = stream(name, kind, known)
                    x = x if layer.norm is None else layer.norm(x)
                    sides[kind] = head.turn(
                        x @ getattr(head, f"W_{kind}") + getattr(head, f"b_{kind}"), kind
                    )
                scores = sides["Q"] @ sides["K"].T / head.scale
                pattern = torch.zeros(n, n, dtype=scores.dtype)
                for dst in range(n):
                    pattern[dst, : dst + 1] = scores[dst, : dst + 1].softmax(0)
                if head.gate is not None:
                    pattern = pattern * head.gate(
                        whole if layer.norm is None else layer.norm(whole)
                    )
                now.scores[name], now.patterns[name], now.values[name] = scores, pattern, sides["V"]
                written[name] = pattern @ sides["V"] @ head.W_O
            if instead is not None and instead[0] == number:
                read = whole if layer.norm is None else layer.norm(whole)
                written = {"new": instead[1](read)}
            for name, value in written.items():
                put(name, value)
            if layer.bias.any():
                put(f"L{number} bias", layer.bias.expand(n, -1))
            if layer.mlp is not None:
                self._mlp(now, number, layer, known if layer.parallel else list(parts), stream, put)
        last = stream("unembed", "", list(parts))
        now.streams["unembed"] = last
        now.scales["unembed"] = None if self.final is None else self.final.scale(last)
        now.logits = (last if self.final is None else self.final(last)) @ self.W_U + self.b_U
        return now

    def _mlp(self, now, number, layer, known, stream, put):
        name, mlp = f"L{number} MLP", layer.mlp
        whole = stream(name, "", known)
        now.streams[name] = whole
        now.scales[name] = None if layer.mlp_norm is None else layer.mlp_norm.scale(whole)
        normed = whole if layer.mlp_norm is None else layer.mlp_norm(whole)
        if mlp.terms is None:
            put(name, mlp(normed))
            return
        gate, value = mlp.reads(normed)
        k = len(mlp.terms(0))
        for neuron in range(mlp.W_in.shape[1]):
            for i, (b, c, a, d) in enumerate(mlp.terms(neuron)):
                head = f"L{number}N{neuron}" + (f".{i}" if k > 1 else "")
                share = torch.sigmoid(b * gate[:, neuron] + c)
                now.patterns[head] = share
                put(head, (share * (a * value[:, neuron] + d))[:, None] * mlp.W_out[neuron])
        if torch.as_tensor(mlp.b_out).any():
            put(f"{name} bias", mlp.b_out.expand(len(now.tokens), -1))


# --- how each kind of model is read --------------------------------------------------------------------------------


def double(value):
    return value.detach().double()


def split(sides, biases, W_O, n_heads, turned=None):
    """The heads of a layer, from the matrices that torch stores for all of them; several may share a key and a value."""
    d, heads = W_O.shape[1] // n_heads, []
    for h in range(n_heads):
        places = [h * len(W) // (n_heads * d) for W in sides]
        rows = [slice(place * d, (place + 1) * d) for place in places]
        W = [side[own].T for side, own in zip(sides, rows, strict=True)]
        b = [bias[own] for bias, own in zip(biases, rows, strict=True)]
        heads.append(Head(*W, W_O[:, rows[0]].T, *b, d**0.5, turned))
    return heads


def native(model, terms=None):
    """A native bridge from its state dictionary; `terms(layer)` of a converted one."""
    cfg, state = model.cfg, {name: double(value) for name, value in model.state_dict().items()}

    def norm(name):
        if f"{name}.weight" not in state:
            return None
        return Norm(state[f"{name}.weight"], state.get(f"{name}.bias"), 1e-5, True)

    turned = None if "pos_embed.weight" in state else neighbours
    layers = []
    for n in range(cfg.n_layers):
        at = f"blocks.{n}."
        sides = [state[f"{at}attn.{k}.weight"] for k in "qkv"]
        biases = [state[f"{at}attn.{k}.bias"] for k in "qkv"]
        heads = split(sides, biases, state[f"{at}attn.o.weight"], cfg.n_heads, turned)
        layer = Layer(heads, norm(f"{at}ln1"), state[f"{at}attn.o.bias"])
        if f"{at}mlp.in.weight" in state:
            W_gate = state.get(f"{at}mlp.gate.weight")
            zero = torch.zeros(cfg.d_model, dtype=torch.float64)
            layer.mlp = MLP(
                state[f"{at}mlp.in.weight"].T,
                state[f"{at}mlp.out.weight"].T,
                state.get(f"{at}mlp.in.bias", 0.0),
                state.get(f"{at}mlp.out.bias", zero),
                torch.nn.functional.gelu if W_gate is None else torch.nn.functional.silu,
                None if W_gate is None else W_gate.T,
                terms=None if terms is None else terms(n),
            )
            layer.mlp_norm = norm(f"{at}ln2")
        layers.append(layer)
    b_U = state.get("unembed.bias", torch.zeros(cfg.d_vocab, dtype=torch.float64))
    return Slow(
        state["embed.weight"],
        state.get("pos_embed.weight"),
        layers,
        norm("ln_final"),
        state["unembed.weight"].T,
        b_U,
    )


def neighbours(row, pos, base=10000.0):
    """A rotation of each two neighbouring dimensions, the real and imaginary part of a number."""
    speed = 1.0 / (base ** (torch.arange(0, len(row), 2).float() / len(row)))
    angle = torch.tensor(float(pos)) * speed
    turn = torch.complex(angle.cos().double(), angle.sin().double())
    return torch.view_as_real(torch.complex(row[0::2], row[1::2]) * turn).flatten()


def forward(model, tokens, cut=(), gone=(), instead=None):
    """Logits and parts of one row of a native bridge; `instead[source, reader, kind]` is what a reader has from a source."""
    run = native(model).run(tokens, gone=gone, cut=cut, read=instead)
    return run.logits, run.parts


def terms_of(model):
    """The four numbers of every head of a neuron, as the converted model holds them: by layer, then by neuron."""

    def terms(layer):
        held = model.blocks[layer].mlp.neurons.terms

        def of(neuron):
            numbers = held.coefficients[:, neuron if held.coefficients.shape[1] > 1 else 0]
            rows = numbers.T.tolist()
            if not any(a for _, _, a, _ in rows):  # a gate: its sum is the factor of the value
                return [(b, c, d, 0.0) for b, c, _, d in rows]
            return rows

        return of

    return terms


def halves(width, base=10000.0):
    """A rotation of the first `width` dimensions, one half against the other, with angles taken in float32."""
    speed = 1.0 / (base ** (torch.arange(0, width, 2).float() / width))
    width = 2 * len(speed)  # transformers turns 4 dimensions where half of 6 is 3

    def turned(row, pos):
        angle = torch.tensor(float(pos)) * speed
        cos, sin = angle.cos().double(), angle.sin().double()
        a, b = row[: width // 2], row[width // 2 : width]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, row[width:]])

    return turned


def weights(model):
    return {
        name.replace("_original_component.", ""): double(v)
        for name, v in model.original_model.state_dict().items()
    }


def llama(model):
    state, config = weights(model), model.original_model.config
    turned, layers = halves(config.head_dim), []
    for n in range(config.num_hidden_layers):
        at = f"model.layers.{n}."
        W = {k: state[f"{at}self_attn.{k}_proj.weight"] for k in "qkvo"}
        b = {k: state[f"{at}self_attn.{k}_proj.bias"] for k in "qkvo"}
        n_heads = config.num_attention_heads
        heads = split([W[k] for k in "qkv"], [b[k] for k in "qkv"], W["o"], n_heads, turned)
        gains = [state[f"{at}{name}_layernorm.weight"] for name in ("input", "post_attention")]
        first, second = (Norm(gain, None, config.rms_norm_eps, False) for gain in gains)
        m = {k: state[f"{at}mlp.{k}_proj.weight"].T for k in ("gate", "up", "down")}
        zero = torch.zeros(config.hidden_size, dtype=torch.float64)
        mlp = MLP(m["up"], m["down"], 0.0, zero, torch.nn.functional.silu, m["gate"])
        layers.append(Layer(heads, first, b["o"], mlp, second))
    final = Norm(state["model.norm.weight"], None, config.rms_norm_eps, False)
    b_U = state.get("lm_head.bias", torch.zeros(config.vocab_size, dtype=torch.float64))
    return Slow(
        state["model.embed_tokens.weight"], None, layers, final, state["lm_head.weight"].T, b_U
    )


def neox(model):
    state, config = weights(model), model.original_model.config
    n_heads, layers = config.num_attention_heads, []
    d = config.hidden_size // n_heads
    turned = halves(int(d * config.rope_parameters["partial_rotary_factor"]))

    def norm(name):
        return Norm(state[f"{name}.weight"], state[f"{name}.bias"], config.layer_norm_eps, True)

    for n in range(config.num_hidden_layers):
        at = f"gpt_neox.layers.{n}."
        joint = state[f"{at}attention.query_key_value.weight"].view(n_heads, 3, d, -1)
        bias = state[f"{at}attention.query_key_value.bias"].view(n_heads, 3, d)
        sides = [joint[:, i].flatten(0, 1) for i in range(3)]
        biases = [bias[:, i].flatten() for i in range(3)]
        heads = split(sides, biases, state[f"{at}attention.dense.weight"], n_heads, turned)
        first, second = norm(f"{at}input_layernorm"), norm(f"{at}post_attention_layernorm")
        into, out = f"{at}mlp.dense_h_to_4h", f"{at}mlp.dense_4h_to_h"
        W_in, W_out = state[f"{into}.weight"].T, state[f"{out}.weight"].T
        act = torch.nn.functional.gelu
        mlp = MLP(W_in, W_out, state[f"{into}.bias"], state[f"{out}.bias"], act)
        bias = state[f"{at}attention.dense.bias"]
        layers.append(Layer(heads, first, bias, mlp, second, parallel=True))
    final = norm("gpt_neox.final_layer_norm")
    zero = torch.zeros(config.vocab_size, dtype=torch.float64)
    name = "lm_head" if "lm_head.weight" in state else "embed_out"
    W_U, b_U = state[f"{name}.weight"].T, state.get(f"{name}.bias", zero)
    return Slow(state["gpt_neox.embed_in.weight"], None, layers, final, W_U, b_U, parallel=True)


def gated(model, block):
    """A gated block in the place of a one-layer model's heads, its weights as the recipe GATES leaves them."""
    p = {name: double(value) for name, value in block.named_parameters()}
    W_V, W_O = (double(value) for value in block.used_weights())
    heads = []
    for h in range(block.n_heads):

        def gate(x, h=h):
            q = x @ p["W_GQ"][h] + p["b_GQ"][h]
            k = x @ p["W_GK"][h] + p["b_GK"][h]
            return (q @ k.T).clamp(0, 1)

        W = p["W_Q"][h], p["W_K"][h], W_V[h], W_O[h], p["b_Q"][h], p["b_K"][h], p["b_V"][h]
        heads.append(Head(*W, float(p["W_Q"].shape[2]) ** 0.5, gate=gate))
    W_E, W_U = double(model.W_E), double(model.W_U)
    layer = Layer(heads, None, torch.zeros(W_E.shape[1], dtype=torch.float64))
    W_pos = torch.zeros(model.cfg.n_ctx, W_E.shape[1], dtype=torch.float64)
    return Slow(W_E, W_pos, [layer], None, W_U, torch.zeros(W_U.shape[1], dtype=torch.float64))
