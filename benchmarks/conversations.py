# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Recorded conversations that are replayed: those that the length model is not trained on, and what each turn sends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vllm_goodput.predictor.dataset import Session

HELD_OUT = 0.25  # fraction of the first prompts


def split(sessions: Sequence[Session], seed: int) -> tuple[list[Session], list[Session]]:
    """(to train on, to replay): sessions that begin with the same prompt stay together."""
    first = [turns[0]["prompt"].strip().lower() for turns in sessions]
    names = sorted(set(first))
    order = np.random.default_rng(seed).permutation(names)
    held = set(order[: int(HELD_OUT * len(names))].tolist())
    train = [turns for turns, prompt in zip(sessions, first, strict=True) if prompt not in held]
    test = [turns for turns, prompt in zip(sessions, first, strict=True) if prompt in held]
    return train, test


def messages(session: Session, turn: int) -> tuple[tuple[str, str], ...]:
    """(role, content) of the chat that a turn sends."""
    row = session[turn]
    if row.get("prompt_kind", "full") == "full":
        return (("user", row["prompt"]),)
    earlier = (
        pair
        for past in session[:turn]
        for pair in (("user", past["prompt"]), ("assistant", str(past.get("output") or "")))
    )
    return (*earlier, ("user", row["prompt"]))
