"""Counts of tokens in prepared data."""

import json

import numpy as np

from tests.data.tiny import make_tokenizer
from tp_dflash.config.data import DataConfig
from tp_dflash.data import prepare_store


def test_counts_of_all_tokens_are_those_of_each(tmp_path):
    lines = [{"text": "one two two three"}, {"text": "two"}]
    (tmp_path / "text.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    tokenizer = make_tokenizer()
    config = DataConfig(train=str(tmp_path / "text.jsonl"), max_length=16, token_budget=16, num_workers=0)
    store = prepare_store(config, tokenizer, tmp_path / "store").train
    documents = [store.document(index).tokens_S.tolist() for index in range(store.num_documents)]
    for vocab_size in (len(tokenizer), len(tokenizer) + 100, 3):
        expected = np.zeros(vocab_size, dtype=np.int64)
        for token in (token for document in documents for token in document if token < vocab_size):
            expected[token] += 1
        assert np.array_equal(store.token_counts(vocab_size), expected)
        assert all(store.token_count(token) == count for token, count in enumerate(expected))
