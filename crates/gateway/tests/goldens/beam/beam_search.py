"""What the beam search of openai-whisper finds for logits that a small generator makes from the tokens before them.

    python beam_search.py > beam_search.json

Needs openai-whisper 20250625 and torch; nothing of Narthex runs here. The tests in
`crates/gateway/src/serve/transcribe/whisper/beam.rs` search with the same logits.
"""

import json
from types import SimpleNamespace

import torch
from whisper.decoding import ApplyTimestampRules, BeamSearchDecoder, MaximumLikelihoodRanker, SuppressTokens

# Texts, then the end, a token that is never generated, the start, and timestamps.
END, NO_TIMESTAMPS, START, FIRST_TIMESTAMP, VOCAB = 20, 21, 22, 23, 36
SUPPRESSED = [2, NO_TIMESTAMPS, START]


def step(state, value):
    return (state * 1664525 + 1013904223 + value * 2654435) % 2**32


def logits(seed, tokens):
    """Logits after `tokens`, each from -4 to 4, with an end that becomes likelier."""
    state = seed
    for token in tokens:
        state = step(state, token + 1)
    values = []
    for _ in range(VOCAB):
        state = step(state, 0)
        values.append((state >> 8) / 2**24 * 8 - 4)
    values[END] += len(tokens) * 0.5
    return torch.tensor(values, dtype=torch.float32)


def search(seed, most, beams, patience, length_penalty):
    """The loop of `DecodingTask._main_loop`, and the choice in `DecodingTask.run`."""
    inference = SimpleNamespace(rearrange_kv_cache=lambda sources: None)
    decoder = BeamSearchDecoder(beams, END, inference, patience)
    tokenizer = SimpleNamespace(no_timestamps=NO_TIMESTAMPS, timestamp_begin=FIRST_TIMESTAMP, eot=END)
    filters = [SuppressTokens(SUPPRESSED), ApplyTimestampRules(tokenizer, 1, 50)]
    tokens = torch.tensor([[START]] * beams)
    sums = torch.zeros(beams)
    for _ in range(most):
        rows = torch.stack([logits(seed, row[1:].tolist()) for row in tokens])
        for rule in filters:
            rule.apply(rows, tokens)
        tokens, completed = decoder.update(tokens, rows, sums)
        if completed:
            break
    found, sums = decoder.finalize(tokens.reshape(1, beams, -1), sums.reshape(1, beams))
    found = [[t[1:(t == END).nonzero()[0, 0]] for t in s] for s in found]
    best = MaximumLikelihoodRanker(length_penalty).rank(found, sums)[0]
    return found[0][best].tolist(), sums[0][best]


cases = []
for seed in range(1, 7):
    for beams, patience, length_penalty in [(1, None, None), (2, None, None), (5, None, None), (5, 2.0, None),
                                            (3, 0.5, 0.25), (4, None, 1.0)]:
        for most in (5, 14):
            tokens, total = search(seed, most, beams, patience, length_penalty)
            cases.append({"seed": seed, "most": most, "beams": beams, "patience": patience,
                          "length_penalty": length_penalty, "tokens": tokens, "sum": round(total, 4)})
print("[" + ",\n".join(json.dumps(case) for case in cases) + "]")
