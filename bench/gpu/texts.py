"""Texts cut from the documentation, and a vocabulary trained on it."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import Any

from encoders import VOCABULARY
from part import NotRun

DOCS = Path(__file__).resolve().parents[2] / "docs"


def train_tokenizer(folder: Path) -> Path:
    """Train a vocabulary of word pieces on the documentation, write it into `folder`, and have all servers find it.

    Raises:
        NotRun: `tokenizers` is not installed.
    """
    try:
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    except ImportError:
        raise NotRun("tokenizers is not installed") from None
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=VOCABULARY, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )
    tokenizer.train([str(page) for page in sorted(DOCS.rglob("*.md"))], trainer)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    os.environ["GPU_TOKENIZER"] = str(path)
    return path


def tokenizer_workers() -> int:
    """How many workers a stage with the tokenizer has here."""
    return max(1, min(4, len(os.sched_getaffinity(0)) // 4))


def open_tokenizer(path: Path, tokens: int) -> Any:
    """The tokenizer of `path`, which gives so many ids for every text."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(tokens)
    tokenizer.enable_padding(length=tokens)
    return tokenizer


def some_texts(count: int, words: int) -> list[str]:
    """So many texts of so many words each, cut from the documentation one after the other."""
    page = "\n".join(path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md"))).split()
    starts = islice(range(0, len(page) - words, max(1, (len(page) - words) // count)), count)
    return [" ".join(page[start : start + words]) for start in starts]
