# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Which served names mean the same model: prompts for them share an instance's prefix cache, so their keys must agree.

The names that an instance serves one base model under are one; a LoRA adapter is a model of its own, by its own name.
A name keeps its meaning for good, so that keys made before an instance joined stay right. Limit: where two groups of
names turn out to be the same model later, each keeps its own keys, and hits across them are not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Names beyond these stand for themselves.
MAX_NAMES = 10_000


@dataclass(frozen=True)
class ModelCard:
    """A model as an instance's /v1/models has it.

    Args:
        name: as requests name it.
        context_len: tokens, if told.
        root: what is loaded under that name, if told.
        parent: the base model's name, of a LoRA adapter.
    """

    name: str
    context_len: int | None = None
    root: str | None = None
    parent: str | None = None


class ModelNames:
    """The canonical names of a pool's models."""

    def __init__(self) -> None:
        self._canonical: dict[str, str] = {}
        self._default: str | None = None

    def learn(self, cards: Sequence[ModelCard]) -> str | None:
        """Take in what an instance serves.

        Returns:
            The canonical name of its base model; None if it serves none.
        """
        groups: dict[str, list[str]] = {}
        for card in cards:
            if card.parent is None:
                groups.setdefault(card.root or card.name, []).append(card.name)
        found = [self._join(names) for names in groups.values()]
        base = found[0] if found else None
        if self._default is None:
            self._default = base
        return base

    def of(self, model: str | None) -> str | None:
        """The canonical name of what a request asks for; None, which asks for any base model, is the first one's."""
        return self._default if model is None else self._canonical.get(model, model)

    def _join(self, names: Sequence[str]) -> str:
        known = (self._canonical[name] for name in names if name in self._canonical)
        canonical = next(known, names[0])
        for name in names:
            if len(self._canonical) < MAX_NAMES:
                self._canonical.setdefault(name, canonical)
        return canonical
