"""Small random models of the two shapes that the lab computes, and the engine of the lab in Node."""

import json
import random
import subprocess

import torch
from playwright._impl._driver import compute_driver_executable

from circuitkit.lab_page.bundle import SOURCES
from tests.support import tiny_models

ASK = """
globalThis.document = {}; // so that the module does not take itself for a worker
const { readFileSync } = await import("node:fs");
const { Bench } = await import(process.argv[1]);
const questions = JSON.parse(readFileSync(0));
const answers = await Promise.all(questions.map(async ({ weights, asked, ...others }) => {
  const bench = new Bench();
  try {
    const said = await bench.open({ name: "own", weights });
    const setting = (one) => ({ model: "own", at: -1, answer: 0, fill: "zero", cuts: [], ...one });
    const logits = asked.map((one) => Array.from(bench.run(setting({ ...one, all: true })).logits));
    const answered = Object.entries(others).map(([kind, one]) => [kind, bench[kind](setting(one))]);
    return { ...said, logits, ...Object.fromEntries(answered) };
  } catch (error) {
    return { error: String(error.message) };
  }
}));
process.stdout.write(JSON.stringify(answers, (_, part) => (part?.buffer ? Array.from(part) : part)));
"""


def computed_by_the_lab(questions: list[dict]) -> list[dict]:
    """What the engine of the page answers: of each file, what it says when it opens, the logits for each setting in `asked`,
    and by their names the answers to other questions."""
    node = compute_driver_executable()[0]  # the browser tests bring it
    worker = (SOURCES / "worker.js").as_uri()
    command = [node, "--no-warnings", "--input-type=module", "-e", ASK, worker]
    done = subprocess.run(command, input=json.dumps(questions).encode(), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return json.loads(done.stdout)


def random_model(shape: str, seed: int, folder):
    """A model of a random size and random settings: "gpt2", "llama", or one of them without MLPs ("... heads").

    Its weights are rounded to 16 bits already, so it is its own reference; it computes in float64.
    """
    choose = random.Random(f"{shape} {seed}")
    d_head, n_heads = choose.choice([2, 4, 6]), choose.choice([1, 2, 4])
    n_layers, n_ctx = choose.choice([1, 2, 2, 3]), choose.choice([16, 24])
    size, vocab = choose.choice([0.1, 0.3]), choose.choice([30, 450])
    sizes = {
        "d_model": d_head * n_heads,
        "d_head": d_head,
        "n_heads": n_heads,
        "n_layers": n_layers,
    }
    if shape.endswith("heads"):
        rotary = {"positional_embedding_type": "rotary", "normalization_type": "RMS"}
        norm = {"normalization_type": choose.choice([None, "LN", "LNPre"])}
        more = rotary if shape.startswith("llama") else norm
        model = tiny_models.boot(
            seed=seed,
            size=size,
            bias=choose.random() < 0.7,
            n_ctx=n_ctx,
            d_vocab=vocab,
            **sizes,
            **more,
        )
    else:
        model = from_transformers(shape, choose, sizes, n_ctx, vocab, folder)
    with torch.no_grad():
        for weight in {*model.parameters(), *model.original_model.parameters()}:
            weight.copy_(weight.half())
    return model, choose


def from_transformers(shape, choose, sizes, n_ctx, vocab, folder):
    import transformers

    d_model, n_heads = sizes["d_model"], sizes["n_heads"]
    if shape == "gpt2":
        config = transformers.GPT2Config(
            n_embd=d_model, n_head=n_heads, n_layer=sizes["n_layers"], n_positions=n_ctx,
            vocab_size=vocab, n_inner=choose.choice([None, 10]), bos_token_id=0, eos_token_id=0,
            activation_function=choose.choice(["gelu_new", "gelu", "relu", "silu"]),
            layer_norm_epsilon=choose.choice([1e-5, 1e-3]),
            tie_word_embeddings=choose.random() < 0.5,
        )  # fmt: skip
    else:
        groups = [n for n in (1, 2, 4) if n_heads % n == 0]
        config = transformers.LlamaConfig(
            hidden_size=d_model, num_attention_heads=n_heads, head_dim=choose.choice([2, 4, 8]),
            num_key_value_heads=choose.choice(groups), num_hidden_layers=sizes["n_layers"],
            intermediate_size=choose.choice([8, 20]), max_position_embeddings=n_ctx,
            vocab_size=vocab, hidden_act=choose.choice(["silu", "gelu", "relu"]), bos_token_id=0,
            eos_token_id=0, attention_bias=choose.random() < 0.5, mlp_bias=choose.random() < 0.5,
            rms_norm_eps=choose.choice([1e-6, 1e-3]),
            rope_parameters={"rope_type": "default", "rope_theta": choose.choice([100.0, 1e4])},
            tie_word_embeddings=choose.random() < 0.5,
        )  # fmt: skip
    original = transformers.AutoModelForCausalLM.from_config(config).eval()
    model = tiny_models.from_folder(folder, original, choose.choice([0.1, 0.4]))
    return tiny_models.in_dtype(model, torch.float64)
