"""What a norm on the stream does to the bookkeeping, in two trained models: MiniLM has one after each sublayer, SmolLM2 has none.

    python -m tools real-conversion --fetch
    python -m tools real-circuit --only norms
"""

from typing import Any

import torch


def shares(value: Any, tokens: torch.Tensor) -> dict[str, Any]:
    """How much of the embedding is left in the stream before each step, and how far one louder head of the first layer moves it."""
    run, heads = value.run(tokens), [name for name in value.head_names if name.startswith("L0H")]
    begun = run.part("embed", 0).norm()
    kept = [float(run.part("embed", step).norm() / begun) for step in range(len(value.steps) + 1)]
    plain, moved = run.part("embed"), []
    for number in range(len(heads)):

        def twice(sub: Any, z: torch.Tensor, number: int = number) -> torch.Tensor:
            louder = torch.ones(len(heads))
            louder[number] = 2.0
            return z * louder[:, None, None] if sub.name == "L0" else z

        moved.append(float((value.run(tokens, edit=twice).part("embed") - plain).norm() / plain.norm()))
    return {"kept": [round(v, 4) for v in kept], "moved": [round(v, 4) for v in moved]}


def norms(model: Any, known: dict[str, Any]) -> dict[str, Any]:
    """Both models on the same held-out sentences, 24 tokens of each."""
    from circuitkit import anatomy
    from tools.study import real_conversion

    encoder, tokenizer = real_conversion.load(real_conversion.fetch(real_conversion.FOLDER))
    ids = [tokenizer(text).input_ids for text in real_conversion.sentences()]
    words = [text for text, row in zip(real_conversion.sentences(), ids, strict=True) if len(row) >= 25][:8]
    other = torch.cat([model.to_tokens(text, prepend_bos=False)[:, :24] for text in words if model.to_tokens(text).shape[1] > 24])
    found = {"MiniLM": shares(anatomy(encoder), torch.tensor([tokenizer(text).input_ids[:24] for text in words]))}
    found["SmolLM2"] = shares(anatomy(model), other)
    for name, one in found.items():
        print(name, "kept", one["kept"][:: max(1, len(one["kept"]) // 6)], "moved", sorted(one["moved"])[-3:], flush=True)
    return found
