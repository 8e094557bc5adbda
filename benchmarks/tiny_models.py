# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Tiny random-weight models made in code, so that real vLLM engines run anywhere without downloads.

They compute real attention and sampling and follow real chat templates; only their text is meaningless. With
`ignore_eos` and given lengths they replay any trace.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BOS, EOS, PAD = "<s>", "</s>", "<pad>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tiny_llama(
    path: str | Path, hidden: int = 128, layers: int = 2, max_len: int = 8192, seed: int = 0
) -> Path:
    """Make a Llama with a byte-level tokenizer under `path`, unless it is there already.

    Args:
        path: directory for the model.
        hidden: hidden size, a multiple of 64.
        layers: decoder layers.
        max_len: context length, tokens.
        seed: of the weights.
    """
    path = Path(path)
    settings = {"hidden": hidden, "layers": layers, "max_len": max_len, "seed": seed, "version": 1}
    done = path / "tiny_llama.json"
    if done.exists() and json.loads(done.read_text()) == settings:
        return path
    path.mkdir(parents=True, exist_ok=True)
    vocab_size = _save_tokenizer(path)
    _save_llama(path, vocab_size, settings)
    done.write_text(json.dumps(settings))
    return path


def _save_tokenizer(path: Path) -> int:
    """One token per UTF-8 byte, plus three special tokens. Returns the vocabulary's size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([BOS, EOS, PAD, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, pad_token=PAD
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(path)
    return len(vocab)


def _save_llama(path: Path, vocab_size: int, settings: dict[str, Any]) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(settings["seed"])
    hidden = settings["hidden"]
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=settings["layers"],
        num_attention_heads=hidden // 64,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=settings["max_len"],
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(path)


if __name__ == "__main__":
    import sys

    print(tiny_llama(sys.argv[1] if sys.argv[1:] else ".cache/tiny-llama"))
