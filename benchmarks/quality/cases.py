"""What the models are asked: a prefix to remember, and what follows it."""

from __future__ import annotations

import torch

from hexkv.adapters.hf.quality.measure import Case
from training import recall
from training.judges import Judge

PREFIX = 1_792
"""Bytes of text that are cached: seven chunks. With the rest as many as the model was taught."""

SUFFIX = 256


def texts(text: bytes, count: int) -> list[Case]:
    """*count* pieces, evenly spread over *text*."""
    every = (len(text) - PREFIX - SUFFIX) // count
    cases = []
    for start in range(0, every * count, every):
        piece = torch.tensor(list(text[start : start + PREFIX + SUFFIX]))
        suffix = piece[PREFIX:]
        cases.append(Case(piece[:PREFIX], suffix, torch.arange(SUFFIX - 1), suffix[1:]))
    return cases


def questions(
    count: int, vocabulary: recall.Vocabulary = recall.VOCABULARY, seed: int = 25
) -> list[Case]:
    """*count* long lists of facts, each followed by questions about some of them."""
    generator = torch.Generator().manual_seed(seed)
    tokens, labels = recall.sequences(count, recall.MOST, generator, vocabulary)
    after = labels[0, recall.MOST :] >= 0
    answers = after.nonzero().flatten()
    return [
        Case(row[: recall.MOST], row[recall.MOST :], answers - 1, row[recall.MOST :][answers])
        for row in tokens
    ]


def asked_of(judge: Judge, count: int) -> list[Case]:
    """*count* sequences of a judge's task, of which it learned nothing."""
    made = judge.task.asked(count, torch.Generator().manual_seed(judge.seed + 3))
    cases = []
    for row, labels in zip(made.tokens, made.labels, strict=True):
        answers = (labels[made.prefix :] >= 0).nonzero().flatten()
        suffix = row[made.prefix :]
        cases.append(Case(row[: made.prefix], suffix, answers - 1, suffix[answers]))
    return cases
